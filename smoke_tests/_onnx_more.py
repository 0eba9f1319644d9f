"""Exports that are tried beside the default one: the whole range of opsets, fp16, weights in a file of their own."""

import os

from _harness import Failed, NotApplicable, Passed, blame_stack, one_line

BEFORE_LAYER_NORM = 16
LOWEST_TRIED = 9  # before it there is no dynamic slicing, which every exporter of a BERT needs


class More:
    """`kit` is the script's module: how it exports, opens and compares."""

    def __init__(self, kit):
        self.kit = kit

    def opsets(self, ctx):
        """The model runs at the lowest opset that its attention allows and at the highest that both sides know."""
        kit = self.kit
        default, limit = kit.exporter_opsets("torchscript")
        reads = ctx.made["reads"]["opset"]
        top = reads if limit is None else min(limit, reads)
        refused = {}
        for opset in range(LOWEST_TRIED, top + 1):
            try:
                low = self.export(ctx, ctx.made["model"], "opset-{}".format(opset), opset)
                break
            except Exception as error:
                refused[opset] = one_line(error)[:200]
        else:
            raise Failed("export-failed", "no opset from {} to {} exports".format(LOWEST_TRIED, top), refused=refused)
        off = {opset: self.difference(ctx, low, opset, ctx.made["wanted"])}
        if top != opset:
            try:
                high = self.export(ctx, ctx.made["model"], "opset-{}".format(top), top)
            except Exception as error:
                raise blame_stack(error, "export-failed", "the export at opset {} fails".format(top)) from None
            off[top] = self.difference(ctx, high, top, ctx.made["wanted"])
        return self.judge(ctx, off, "opsets {} to {}".format(opset, top), refused=refused, default=default)

    def half(self, ctx):
        """A model in fp16 gives torch's own fp16 outputs, where this torch runs fp16 on a CPU."""
        kit, torch = self.kit, ctx.made["torch"]
        if ctx.params["dtype"] == "fp16":
            raise NotApplicable("the whole script runs in fp16")
        model = kit.new_model(ctx, torch).half()
        try:
            with torch.no_grad():
                wanted = [model(ids, mask) for ids, mask in ctx.made["cases"]]
        except RuntimeError as error:
            if "not implemented for 'Half'" not in str(error):
                raise blame_stack(error, "model-failed", "the model does not run in fp16") from None
            raise NotApplicable("torch {} runs no fp16 on a CPU".format(torch.__version__)) from None
        # Some exporters put an fp32 tensor into an fp16 LayerNormalization, an operator since opset 17; below it the
        # norm is written out. That the newer opset does not load is told, and fails only where no opset does.
        first, refused = min(kit.exporter_opsets("torchscript")[0], ctx.made["reads"]["opset"]), {}
        for opset in [first] + [older for older in (BEFORE_LAYER_NORM,) if older < first]:
            try:
                path = self.export(ctx, model, "fp16", opset)
                off = {"fp16": self.difference(ctx, path, "fp16", wanted)}
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
        return self.judge(ctx, off, what, tolerance=kit.TOLERANCE["fp16", kit.CPU], refused=told)

    def external_data(self, ctx):
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
        off = {"external": self.difference(ctx, path, "external", ctx.made["wanted"])}
        return self.judge(ctx, off, "weights of {:.1f} MiB beside the model".format(sizes[beside] / 2.0**20))

    def export(self, ctx, model, name, opset):
        torch, kit = ctx.made["torch"], self.kit
        path = os.path.join(ctx.scratch, name + ".onnx")
        ids, mask = kit.new_case(torch, ctx.params["vocab"], (ctx.params["batch"], ctx.params["seq"], True))
        try:
            with torch.no_grad():
                torch.onnx.export(
                    model,
                    (ids, mask),
                    path,
                    input_names=["input_ids", "attention_mask"],
                    output_names=["logits"],
                    opset_version=opset,
                    **kit.EXPORTERS[0].options(torch),
                )
        finally:
            model.eval()
        return path

    def difference(self, ctx, path, name, wanted):
        kit = self.kit
        try:
            session = ctx.made["runtime"].InferenceSession(
                path, kit.quiet_options(ctx.made["runtime"]), providers=[kit.CPU]
            )
            outputs = [kit.infer(session, ids, mask) for ids, mask in ctx.made["cases"]]
        except Exception as error:
            raise blame_stack(error, "session-failed", "onnxruntime does not run the file of {}".format(name)) from None
        torch = ctx.made["torch"]
        return max(kit.difference(torch, torch.from_numpy(left), right) for left, right in zip(outputs, wanted))

    def judge(self, ctx, off, what, tolerance=None, **details):
        tolerance = tolerance or self.kit.tolerance_for(ctx, self.kit.CPU)
        worst = max(off.values())
        values = dict(details, measured=worst, expected=0, tolerance=tolerance, by_file=off)
        if not worst <= tolerance:
            raise Failed("outputs-differ", "{}: {:.2g} off, tolerance {:g}".format(what, worst, tolerance), **values)
        return Passed("{} run, largest difference {:.2g}".format(what, worst), **values)
