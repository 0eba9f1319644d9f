"""Exports that are tried beside the default one: the whole range of opsets, fp16, weights in a file of their own."""

import os

import _bert
import _onnx_bytes
import _onnx_kit
from _harness import Failed, NotApplicable, Passed, blame_stack, one_line

BEFORE_LAYER_NORM = 16
LOWEST_TRIED = 9  # before it there is no dynamic slicing, which every exporter of a BERT needs
# What an opset or half precision changes is in every layer the same, and exporters take their time for each.
LAYERS = 1


class More:
    """The further checks of one way to export."""

    def __init__(self, exporter):
        self.exporter = exporter

    def opsets(self, ctx):
        """The model runs at the lowest opset that its attention allows and at the highest that both sides know."""
        torch, reads = ctx.made["torch"], ctx.made["reads"]["opset"]
        default, limit = self.exporter.opsets()
        top = reads if limit is None else min(limit, reads)
        _bert.seed_everything(torch, ctx.params["seed"])
        model = _onnx_kit.new_model(ctx, torch, layers=LAYERS)
        with torch.no_grad():
            wanted = [model(ids, mask) for ids, mask in ctx.made["cases"]]
        try:
            prepared = self.exporter.prepared(ctx, torch, model)
        except Exception as error:
            raise blame_stack(error, "export-failed", "the model cannot be captured") from None
        refused, found = {}, {}
        lowest, path = self.lowest(ctx, prepared, top, refused)
        if lowest is not None:
            found[lowest] = path
        if top not in found:
            found[top] = self.at(ctx, prepared, top)
        off = {opset: difference(ctx, path, "opset {}".format(opset), wanted) for opset, path in found.items()}
        span = "opsets {} to {}".format(min(found), top) if len(found) > 1 else "opset {} alone".format(top)
        return judge(ctx, off, span, refused=refused, default=default)

    def lowest(self, ctx, prepared, top, refused):
        """(the lowest opset that is exported, its file); (None, None) where there is none below the highest."""
        if not self.exporter.keeps_its_own:
            for opset in range(LOWEST_TRIED, top + 1):
                path = self.tried(ctx, prepared, opset, refused)
                if path is not None:
                    return opset, path
            raise Failed("export-failed", "no opset from {} to {} exports".format(LOWEST_TRIED, top), refused=refused)
        # This exporter has one opset of its own, and goes below it by conversion as far as that succeeds.
        lowest = None, None
        for opset in range(min(self.exporter.own_opset(), top) - 1, LOWEST_TRIED - 1, -1):
            path = self.tried(ctx, prepared, opset, refused)
            if path is None:
                break
            lowest = opset, path
        return lowest

    def tried(self, ctx, prepared, opset, refused):
        try:
            return self.at(ctx, prepared, opset)
        except Exception as error:
            refused[opset] = one_line(error)[:200]
            return None

    def at(self, ctx, prepared, opset):
        """The file of an export at this opset, which it must hold."""
        path = os.path.join(ctx.scratch, "{}.opset-{}.onnx".format(self.exporter.name, opset))
        try:
            self.exporter.write(ctx, prepared, path, opset)
            with open(path, "rb") as stream:
                held, _ = _onnx_bytes.versions(stream.read())
        except Exception as error:
            raise blame_stack(error, "export-failed", "the export at opset {} fails".format(opset)) from None
        if held != opset:
            message = "opset {} was asked for, the file has opset {}".format(opset, held)
            raise Failed("opset-not-kept", message, measured=held, expected=opset)
        return path

    def half(self, ctx):
        """A model in fp16 gives torch's own fp16 outputs, where this torch runs fp16 on a CPU."""
        torch = ctx.made["torch"]
        if ctx.params["dtype"] == "fp16":
            raise NotApplicable("the whole script runs in fp16")
        _bert.seed_everything(torch, ctx.params["seed"])
        model = _onnx_kit.new_model(ctx, torch, layers=LAYERS).half()
        try:
            with torch.no_grad():
                wanted = [model(ids, mask) for ids, mask in ctx.made["cases"]]
        except RuntimeError as error:
            if "not implemented for 'Half'" not in str(error):
                raise blame_stack(error, "model-failed", "the model does not run in fp16") from None
            raise NotApplicable("torch {} runs no fp16 on a CPU".format(torch.__version__)) from None
        # Some exporters put an fp32 tensor into an fp16 LayerNormalization, an operator since opset 17; below it the
        # norm is written out. That the newer opset does not load is told, and fails only where no opset does.
        first, refused = min(self.exporter.opsets()[0], ctx.made["reads"]["opset"]), {}
        tries = [first]
        if not self.exporter.keeps_its_own and first > BEFORE_LAYER_NORM:
            tries.append(BEFORE_LAYER_NORM)
        for opset in tries:
            path = os.path.join(ctx.scratch, self.exporter.name + ".fp16.onnx")
            try:
                self.exporter.write(ctx, model, path, opset)
                off = {"fp16": difference(ctx, path, "fp16", wanted)}
                break
            except Failed as failed:
                refused[opset] = failed
            except Exception as error:
                refused[opset] = blame_stack(error, "export-failed", "the export in fp16 fails")
        else:
            raise refused[first]
        told = {number: failed.message[:300] for number, failed in refused.items()}
        what = "fp16 at opset {}".format(opset)
        if told:
            what += ", not at {},".format(first)
        return judge(ctx, off, what, tolerance=_onnx_kit.TOLERANCE["fp16", _onnx_kit.CPU], refused=told)


def external_data(ctx):
    """A model whose weights lie in a file beside it, as those above 2 GiB have to, loads and runs."""
    onnx = ctx.optional("onnx")
    source = ctx.made["torchscript"]["path"]
    path = os.path.join(ctx.scratch, "external", "model.onnx")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        onnx.save_model(
            onnx.load(source),
            path,
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location="model.data",
            size_threshold=0,
        )
    except Exception as error:
        raise blame_stack(error, "export-failed", "the weights cannot be put beside the model") from None
    beside = os.path.join(os.path.dirname(path), "model.data")
    sizes = {name: os.path.getsize(name) if os.path.isfile(name) else 0 for name in (path, beside)}
    if sizes[beside] < sizes[path]:
        raise Failed("weights-not-beside", "the weights are not in a file of their own", measured=sizes)
    off = {"external": difference(ctx, path, "external", ctx.made["wanted"])}
    return judge(ctx, off, "weights of {:.1f} MiB beside the model".format(sizes[beside] / 2.0**20))


def difference(ctx, path, name, wanted):
    runtime, torch = ctx.made["runtime"], ctx.made["torch"]
    try:
        session = runtime.InferenceSession(path, _onnx_kit.quiet_options(runtime), providers=[_onnx_kit.CPU])
        outputs = [_onnx_kit.infer(session, ids, mask) for ids, mask in ctx.made["cases"]]
    except Exception as error:
        raise blame_stack(error, "session-failed", "onnxruntime does not run the file of {}".format(name)) from None
    return max(_onnx_kit.difference(torch, torch.from_numpy(left), right) for left, right in zip(outputs, wanted))


def judge(ctx, off, what, tolerance=None, **details):
    tolerance = tolerance or _onnx_kit.tolerance_for(ctx, _onnx_kit.CPU)
    worst = max(off.values())
    values = dict(details, measured=worst, expected=0, tolerance=tolerance, by_file=off)
    if not worst <= tolerance:
        raise Failed("outputs-differ", "{}: {:.2g} off, tolerance {:g}".format(what, worst, tolerance), **values)
    return Passed("{} run, largest difference {:.2g}".format(what, worst), **values)
