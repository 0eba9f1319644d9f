"""One way to export to ONNX, and its checks."""

import inspect
import os

import _onnx_bytes
import _onnx_kit
import _onnx_more
from _harness import Failed, NotApplicable, Passed, blame_stack, one_line
from _onnx_kit import CPU, SHAPES
from _placement import judge_placement


class Exporter:
    """The checks of one way to export; each way has its own names, so that both can be seen side by side."""

    def __init__(self, name):
        self.name = name
        self.keeps_its_own = name == "dynamo"

    def register(self, script):
        more, earlier = _onnx_more.More(self), ["model"]
        for step, check in (
            ("export", self.export),
            ("opset", self.opset),
            ("session", self.session),
            ("dynamic_shapes", self.dynamic_shapes),
            ("outputs_agree", self.outputs_agree),
            ("provider", self.provider),
            ("opsets", more.opsets),
            ("fp16", more.half),
        ):
            script.check("{}.{}".format(self.name, step), "L2", needs=earlier)(check)
            if step not in ("outputs_agree", "provider", "opsets"):
                earlier = ["{}.{}".format(self.name, step)]
            elif step == "provider":
                earlier = ["{}.outputs_agree".format(self.name)]

    def export(self, ctx):
        """The export ends with a file, at an opset both sides know."""
        torch = ctx.made["torch"]
        self.applies(ctx, torch)
        asked = self.choose_opset(ctx)
        path = os.path.join(ctx.scratch, self.name + ".onnx")
        try:
            self.write(ctx, ctx.made["model"], path, asked)
        except Exception as error:
            raise blame_stack(error, "export-failed", "{} export at opset {} fails".format(self.name, asked)) from None
        if not os.path.isfile(path):
            raise Failed("export-failed", "the {} export ends without a file".format(self.name))
        ctx.made[self.name] = {"path": path, "asked": asked}
        beside = path + ".data"
        sizes = {
            "bytes": os.path.getsize(path),
            "bytes_beside": os.path.getsize(beside) if os.path.isfile(beside) else 0,
        }
        message = "exported at opset {}{}".format(
            asked, ", with the weights beside it" if sizes["bytes_beside"] else ""
        )
        return Passed(message, measured=asked, **sizes)

    def write(self, ctx, model, path, opset):
        """One export, as people call it; `model` may be what `prepared` gave."""
        torch = ctx.made["torch"]
        options = {"dynamo": True} if not isinstance(model, torch.nn.Module) else self.options(torch)
        try:
            with torch.no_grad():
                torch.onnx.export(
                    model,
                    _onnx_kit.example(ctx, torch),
                    path,
                    input_names=["input_ids", "attention_mask"],
                    output_names=["logits"],
                    opset_version=opset,
                    **options,
                )
        finally:
            if isinstance(model, torch.nn.Module):
                model.eval()  # exporters put back the mode they found, and not all of them for every layer

    def prepared(self, ctx, torch, model):
        """The model for several exports: captured once, where the exporter would capture it each time."""
        if self.name != "dynamo":
            return model
        with torch.no_grad():
            shapes = self.options(torch)["dynamic_shapes"]
            return torch.export.export(model, _onnx_kit.example(ctx, torch), dynamic_shapes=shapes, strict=False)

    def applies(self, ctx, torch):
        known = "dynamo" in inspect.signature(torch.onnx.export).parameters
        if self.name == "torchscript":
            return
        default = known and inspect.signature(torch.onnx.export).parameters["dynamo"].default is True
        if not default:
            raise NotApplicable("torch {} does not export through dynamo by default".format(torch.__version__))
        ctx.optional("onnx")
        ctx.optional("onnxscript")

    def options(self, torch):
        if self.name == "dynamo":
            axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC}
            return {"dynamo": True, "dynamic_shapes": {"input_ids": axes, "attention_mask": axes}}
        axes = {0: "batch", 1: "sequence"}
        options = {"dynamic_axes": {"input_ids": axes, "attention_mask": axes, "logits": {0: "batch"}}}
        if "dynamo" in inspect.signature(torch.onnx.export).parameters:
            options["dynamo"] = False
        return options

    def choose_opset(self, ctx):
        """At most what both sides can: the exporter's own limit and the highest that the runtime loads."""
        default, limit = self.opsets()
        reads = ctx.made["reads"]["opset"]
        asked = ctx.params["opset"] or min(default, reads)
        highest_common = reads if limit is None else min(limit, reads)
        if asked > highest_common:
            raise Failed(
                "opset-too-high",
                "opset {} is asked for; the {} exporter writes up to {}, the runtime reads up to {}".format(
                    asked, self.name, limit or "an unknown opset", reads
                ),
                measured=asked,
                expected="<= {}".format(highest_common),
            )
        return asked

    def opsets(self):
        """(default, limit); the constants moved between releases, limit is None where none is told."""
        try:
            from torch.onnx import _constants as constants
        except ImportError:  # before torch 1.12
            from torch.onnx import symbolic_helper as constants

        def first(*names):
            return next((getattr(constants, one) for one in names if hasattr(constants, one)), None)

        default = first("ONNX_DEFAULT_OPSET", "onnx_default_opset", "_default_onnx_opset_version") or 13
        limit = first("ONNX_MAX_OPSET", "onnx_main_opset", "_onnx_main_opset")
        if self.name == "torchscript":
            limit = first("ONNX_TORCHSCRIPT_EXPORTER_MAX_OPSET") or limit
        return default if limit is None else min(default, limit), limit

    def own_opset(self):
        """The one that the dynamo exporter's operators are written in; others it makes by conversion."""
        try:
            from torch.onnx._internal.exporter import _constants as constants
        except ImportError:
            return self.opsets()[0]
        return getattr(constants, "TORCHLIB_OPSET", self.opsets()[0])

    def opset(self, ctx):
        """What the file really holds: an exporter may write another opset than it was asked for."""
        made, reads = ctx.made[self.name], ctx.made["reads"]
        try:
            with open(made["path"], "rb") as stream:
                opset, ir_version = _onnx_bytes.versions(stream.read())
        except (ValueError, IndexError) as error:
            raise Failed("file-broken", "the exported file cannot be read: {}".format(one_line(error))) from None
        found = {"opset": opset, "ir_version": ir_version}
        if opset > reads["opset"]:
            raise Failed(
                "opset-too-high",
                "the file has opset {}, the runtime reads up to {}".format(opset, reads["opset"]),
                measured=found,
                expected=reads,
            )
        if ir_version > reads["ir_version"]:
            raise Failed(
                "ir-too-high",
                "the file has IR version {}, the runtime reads up to {}".format(ir_version, reads["ir_version"]),
                measured=found,
                expected=reads,
            )
        return Passed(
            "the file has opset {} and IR version {}".format(opset, ir_version), measured=found, expected=reads
        )

    def session(self, ctx):
        """Onnxruntime loads the file with the two inputs."""
        try:
            made = _onnx_kit.new_session(ctx, ctx.made[self.name]["path"], [CPU])
        except Exception as error:
            raise blame_stack(error, "session-failed", "onnxruntime does not load the file") from None
        ctx.made[self.name]["session"] = made
        inputs = {entry.name: list(entry.shape) for entry in made.get_inputs()}
        if sorted(inputs) != ["attention_mask", "input_ids"]:
            raise Failed(
                "session-failed",
                "the model takes {}".format(", ".join(sorted(inputs)) or "nothing"),
                measured=inputs,
                expected=["attention_mask", "input_ids"],
            )
        return Passed("onnxruntime loads the file", measured=inputs)

    def dynamic_shapes(self, ctx):
        """Declared free, and it runs at every shape: an exporter can bake a size in without declaring it."""
        session = ctx.made[self.name]["session"]
        fixed = {
            entry.name: list(entry.shape)
            for entry in session.get_inputs()
            if any(isinstance(size, int) for size in entry.shape)
        }
        if fixed:
            raise Failed(
                "shape-not-dynamic",
                "the exported inputs have fixed sizes: {}".format(fixed),
                measured=fixed,
                expected="batch and sequence are free",
            )
        outputs = []
        for (ids, mask), shape, wanted in zip(ctx.made["cases"], SHAPES, ctx.made["wanted"]):
            name = "batch {}, sequence {}".format(*shape)
            try:
                outputs.append(_onnx_kit.infer(session, ids, mask))
            except Exception as error:
                raise blame_stack(error, "shape-not-dynamic", "it does not run at {}".format(name)) from None
            if outputs[-1].shape != tuple(wanted.shape):
                raise Failed(
                    "shape-not-dynamic",
                    "at {} the output is {}".format(name, outputs[-1].shape),
                    measured=outputs[-1].shape,
                    expected=tuple(wanted.shape),
                )
        ctx.made[self.name]["outputs"] = outputs
        return Passed("it runs at {} other shapes than exported".format(len(SHAPES) - 1), measured=SHAPES)

    def outputs_agree(self, ctx):
        """Outputs equal torch's within 2e-5 (fp32) or 1e-2 (fp16)."""
        return _onnx_kit.judge_outputs(ctx, ctx.made[self.name]["outputs"], CPU)

    def provider(self, ctx):
        """The profile shows which provider ran each node; the matrix products ran on the one named."""
        session = ctx.made[self.name]["session"]
        return judge_placement(CPU, session.get_providers(), _onnx_kit.placement(session))
