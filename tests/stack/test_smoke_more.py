"""Faults for what was added to the training step, and for the scripts beside it; see test_smoke_scripts.py."""

from __future__ import annotations

import pytest
from seeded import fault, faults
from stacks import allowed_seconds, codes, facts, installed

pytestmark = pytest.mark.stack

TRAIN_MORE_FAULTS = {
    "a loss that is a sum over rows": (
        """
        import transformers
        forward = transformers.BertForSequenceClassification.forward
        def summed(self, *args, **kwargs):
            output = forward(self, *args, **kwargs)
            output.loss = output.loss * kwargs["labels"].shape[0]
            return output
        transformers.BertForSequenceClassification.forward = summed
        """,
        {"accumulation": "accumulation-differs"},
    ),
    "an optimizer that forgets its state": (
        """
        import torch
        torch.optim.Optimizer.load_state_dict = lambda self, state: None
        """,
        {"checkpoint": "resume-differs"},
    ),
    "a checkpoint that cannot be written": (
        """
        import torch
        def save(*args, **kwargs):
            raise OSError(28, "No space left on device")
        torch.save = save
        """,
        {"checkpoint": "checkpoint-failed"},
    ),
    "a seed that is not kept": (
        """
        import os, torch
        seed = torch.manual_seed
        torch.manual_seed = lambda value: seed(int.from_bytes(os.urandom(4), "little"))
        """,
        {"seed": "seed-not-repeatable"},
    ),
    "one rate for all groups": (
        """
        import torch
        step = torch.optim.SGD.step
        def same(self, *args, **kwargs):
            for group in self.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
            return step(self, *args, **kwargs)
        torch.optim.SGD.step = same
        """,
        {"layer_rates": "layer-rate-ignored"},
    ),
}


@pytest.mark.parametrize("name", faults("train_step", TRAIN_MORE_FAULTS))
def test_faults_around_the_loop_fail_with_their_code(run, name):
    fault, expected = TRAIN_MORE_FAULTS[name]
    _, checks = run("train_step", params={"device": "cpu"}, fault=fault)
    assert expected.items() <= codes(checks).items(), codes(checks)


@pytest.mark.parametrize("script", ["files", "data_loader", "distributed", "trainer", "loggers", "compile", "card"])
def test_passes_where_all_is_well(run, script):
    document, checks = run(script)
    assert codes(checks) == {}
    assert document["seconds"] < allowed_seconds()


DISTRIBUTED_FAULTS = {
    "gradients that stay on their own rank": (
        """
        import torch.nn.parallel
        torch.nn.parallel.DistributedDataParallel = lambda module, **options: module
        """,
        {"gloo_gradients": "gradients-differ"},
    ),
    "a process that dies": (
        """
        import torch.distributed
        start = torch.distributed.init_process_group
        def dies(*args, **kwargs):
            if kwargs.get("rank") == 1:
                raise RuntimeError("no route to host")
            return start(*args, **kwargs)
        torch.distributed.init_process_group = dies
        """,
        {"gloo_gradients": "processes-fail"},
    ),
    "a build without gloo": (
        """
        import torch.distributed
        del torch.distributed.ProcessGroupGloo
        """,
        {"gloo_gradients": "gloo-missing"},
    ),
}


@pytest.mark.parametrize("name", faults("distributed", DISTRIBUTED_FAULTS))
def test_faults_of_several_processes(run, name):
    fault, expected = DISTRIBUTED_FAULTS[name]
    _, checks = run("distributed", fault=fault)
    assert codes(checks) == expected


LOADER_FAULTS = {
    "a hanging worker": (
        """
        import os, time
        import torch.utils.data._utils.worker as worker
        loop = worker._worker_loop
        def hang(*args, **kwargs):
            time.sleep(600)
        worker._worker_loop = hang
        """,
        {"limit_s": 5},
        {"workers": "loader-hangs"},
    ),
    "a worker that dies": (
        """
        import os
        import torch.utils.data._utils.worker as worker
        worker._worker_loop = lambda *args, **kwargs: os._exit(3)
        """,
        {},
        {"workers": "loader-failed"},
    ),
    "rows that come twice": (
        """
        import torch.utils.data as data
        data.SequentialSampler.__iter__ = lambda self: iter([0] * len(self.data_source))
        """,
        {},
        {"workers": "rows-wrong"},
    ),
    "a loader that reads by itself": (
        """
        import torch.utils.data as data
        make = data.DataLoader.__init__
        data.DataLoader.__init__ = lambda self, *args, num_workers=0, **kwargs: make(self, *args, **kwargs)
        """,
        {},
        {"workers": "workers-not-used"},
    ),
}


@pytest.mark.parametrize("name", faults("data_loader", LOADER_FAULTS, lambda row: row[2]))
def test_faults_of_the_loader(run, name):
    fault, params, expected = LOADER_FAULTS[name]
    _, checks = run("data_loader", params=params, fault=fault)
    assert codes(checks) == expected


@fault("data_loader", {"shared_memory": "shm-too-small"})
@fault("data_loader", {"shared_memory": "shm-missing"})
def test_a_small_shared_memory_is_told_as_such(run):
    _, checks = run("data_loader", params={"least_shm_bytes": 2**60})
    assert codes(checks) == {"shared_memory": "shm-too-small"}
    assert checks["shared_memory"]["blame"] == "host"
    assert checks["workers"]["status"] == "not-checked"
    _, checks = run("data_loader", params={"shm_folder": "/nowhere"})
    assert codes(checks) == {"shared_memory": "shm-missing"}


def needs(python, *packages):
    missing = [package for package in packages if package not in installed(python)]
    if missing:
        pytest.skip(f"this stack has no {', '.join(missing)}")


LOGGER_FAULTS = {
    "a TensorBoard writer that writes nothing": (
        """
        import torch.utils.tensorboard as board
        board.SummaryWriter.add_scalar = lambda self, *args, **kwargs: None
        """,
        {"tensorboard": "log-differs"},
        "tensorboard",
    ),
    "a TensorBoard that cannot write": (
        """
        import torch.utils.tensorboard as board
        def full(self, *args, **kwargs):
            raise OSError(28, "No space left on device")
        board.SummaryWriter.add_scalar = full
        """,
        {"tensorboard": "logger-failed"},
        "tensorboard",
    ),
    "a wandb run that loses what it is told": (
        """
        import wandb.sdk.wandb_run as run
        run.Run.log = lambda self, *args, **kwargs: None
        """,
        {"wandb": "log-differs"},
        "wandb",
    ),
}


@pytest.mark.parametrize("name", faults("loggers", LOGGER_FAULTS))
def test_faults_of_the_loggers(run, python, name):
    fault, expected, package = LOGGER_FAULTS[name]
    needs(python, package)
    _, checks = run("loggers", fault=fault)
    assert codes(checks) == expected


COMPILE_FAULTS = {
    "a compile that does nothing": (
        """
        import torch
        torch.compile = lambda model, *args, **kwargs: model
        """,
        {"compiles": "not-compiled"},
    ),
    "a compiler that fails": (
        """
        import torch
        def compile(model, *args, **kwargs):
            raise ValueError("internal compiler error")
        torch.compile = compile
        """,
        {"compiles": "compile-failed"},
    ),
    "compiled code that is wrong": (
        """
        import torch
        real = torch.compile
        class Wrong(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner
            def forward(self, data):
                return self.inner(data) + 0.01
        torch.compile = lambda model, *args, **kwargs: Wrong(real(model, backend="eager"))
        """,
        {"equals_eager": "compiled-differs"},
    ),
}


@pytest.mark.parametrize("name", faults("compile", COMPILE_FAULTS))
def test_faults_of_the_compiler(run, python, name):
    if not facts(python)["compiles"]:
        pytest.skip("this torch does not compile")
    fault, expected = COMPILE_FAULTS[name]
    _, checks = run("compile", fault=fault)
    assert codes(checks) == expected


def test_without_a_compiler_there_is_nothing_to_check(run, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    _, checks = run("compile")
    assert {check["code"] for check in checks.values()} == {"not-applicable"}


TRAINER_FAULTS = {
    "a tokenizer that forgets the mask": (
        """
        import transformers
        call = transformers.PreTrainedTokenizerFast.__call__
        def forget(self, *args, **kwargs):
            read = call(self, *args, **kwargs)
            read["attention_mask"] = [[1] * len(row) for row in read["input_ids"]]
            return read
        transformers.PreTrainedTokenizerFast.__call__ = forget
        """,
        {"tokenizer": "tokens-wrong"},
        (),
    ),
    "a tokenizer that cannot be made": (
        """
        import transformers
        def fail(self, *args, **kwargs):
            raise ValueError("data did not match any variant")
        transformers.PreTrainedTokenizerFast.__init__ = fail
        """,
        {"tokenizer": "tokenizer-failed"},
        (),
    ),
    "a file that is read into memory": (
        """
        import datasets
        from_file = datasets.Dataset.from_file
        kept = []
        def whole(path, *args, **kwargs):
            data = from_file(path, *args, **kwargs)
            kept.append([str(text) for text in data["text"]])
            return data
        datasets.Dataset.from_file = whole
        """,
        {"mapped_dataset": "not-mapped"},
        ("datasets",),
    ),
    "a file that cannot be read": (
        """
        import datasets
        def fail(path, *args, **kwargs):
            raise OSError("Invalid flatbuffers message")
        datasets.Dataset.from_file = fail
        """,
        {"mapped_dataset": "dataset-failed"},
        ("datasets",),
    ),
    "a data set that loses rows": (
        """
        import datasets
        from_file = datasets.Dataset.from_file
        def half(path, *args, **kwargs):
            data = from_file(path, *args, **kwargs)
            return data.select(range(len(data) // 2))
        datasets.Dataset.from_file = half
        """,
        {"mapped_dataset": "rows-wrong"},
        ("datasets",),
    ),
    "a trainer that does not run": (
        """
        import transformers
        def fail(self, *args, **kwargs):
            raise TypeError("Accelerator.__init__() got an unexpected keyword argument 'dispatch_batches'")
        transformers.Trainer.train = fail
        """,
        {"trains": "trainer-failed"},
        (),
    ),
    "an optimizer that does not step": (
        """
        import torch
        for kind in (torch.optim.AdamW, torch.optim.Adam):
            kind.step = lambda self, closure=None: None
        import transformers.optimization as own
        if hasattr(own, "AdamW"):
            own.AdamW.step = lambda self, closure=None: None
        """,
        {"trains": "loss-not-falling"},
        (),
    ),
    "accumulation that is left out": (
        """
        import functools, transformers
        init = transformers.TrainingArguments.__init__
        @functools.wraps(init)
        def alone(self, *args, **kwargs):
            kwargs["gradient_accumulation_steps"] = 1
            init(self, *args, **kwargs)
        transformers.TrainingArguments.__init__ = alone
        """,
        {"settings_followed": "setting-ignored"},
        (),
    ),
    "half precision that is left out": (
        """
        import functools, transformers
        init = transformers.TrainingArguments.__init__
        @functools.wraps(init)
        def whole(self, *args, **kwargs):
            kwargs["bf16"] = False
            init(self, *args, **kwargs)
        transformers.TrainingArguments.__init__ = whole
        """,
        {"half_precision": "setting-ignored"},
        (),
    ),
}


@pytest.mark.parametrize("name", faults("trainer", TRAINER_FAULTS))
def test_faults_of_the_trainer(run, python, name):
    fault, expected, packages = TRAINER_FAULTS[name]
    version = tuple(int(part) for part in installed(python)["transformers"].split(".")[:2])
    needs(python, *packages, *(["accelerate"] if version >= (4, 30) else []))
    if "half_precision" in expected and version < (4, 20):
        pytest.skip("this Trainer has no half precision on a CPU")
    _, checks = run("trainer", fault=fault)
    assert expected.items() <= codes(checks).items(), codes(checks)


@fault("files", {"requirements": "requirement-unmet"})
def test_a_stack_with_a_requirement_that_is_not_met(run, python, tmp_path, monkeypatch):
    """One more package on the path, which asks for a numpy that no stack has."""
    info = tmp_path / "faults" / "needy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: needy\nVersion: 1.0\nRequires-Dist: numpy<1\n\n")
    _, checks = run("files", fault="")
    assert codes(checks) == {"requirements": "requirement-unmet"}


ONNX_FAULTS = {
    "an exporter that forgets one opset": (
        """
        import torch
        import functools
        export = torch.onnx.export
        @functools.wraps(export)
        def wrong(model, *args, **kwargs):
            if kwargs["opset_version"] in (10, 14, 17) and "opset-" in str(args[1]):
                for tensor in model.parameters():
                    tensor.data.mul_(1.5)
            try:
                return export(model, *args, **kwargs)
            finally:
                for tensor in model.parameters():
                    if kwargs["opset_version"] in (10, 14, 17) and "opset-" in str(args[1]):
                        tensor.data.div_(1.5)
        torch.onnx.export = wrong
        """,
        {"torchscript.opsets": "outputs-differ", "dynamo.opsets": "outputs-differ"},
        (),
    ),
    "an exporter that knows no old opset": (
        """
        import torch
        import functools
        export = torch.onnx.export
        @functools.wraps(export)
        def wrong(model, *args, **kwargs):
            if "opset-" in str(args[1]):
                raise RuntimeError("Unsupported: ONNX export of operator")
            return export(model, *args, **kwargs)
        torch.onnx.export = wrong
        """,
        {"torchscript.opsets": "export-failed", "dynamo.opsets": "export-failed"},
        (),
    ),
    "an exporter that writes one opset whatever it is asked": (
        """
        import torch
        import functools
        export = torch.onnx.export
        @functools.wraps(export)
        def wrong(model, *args, **kwargs):
            if "opset-" in str(args[1]):
                kwargs["opset_version"] = 14 if "torchscript" in str(args[1]) else 18
            return export(model, *args, **kwargs)
        torch.onnx.export = wrong
        """,
        {"torchscript.opsets": "opset-not-kept", "dynamo.opsets": "opset-not-kept"},
        (),
    ),
    "other weights in the fp16 file": (
        """
        import torch
        import functools
        export = torch.onnx.export
        @functools.wraps(export)
        def wrong(model, *args, **kwargs):
            if "fp16" in str(args[1]):
                model.inner.classifier.bias.data += 1
            return export(model, *args, **kwargs)
        torch.onnx.export = wrong
        """,
        {"torchscript.fp16": "outputs-differ", "dynamo.fp16": "outputs-differ"},
        (),
    ),
    "weights that stay in the model": (
        """
        import onnx
        save = onnx.save_model
        def inside(model, path, **options):
            save(model, path)
        onnx.save_model = inside
        """,
        {"external_data": "weights-not-beside"},
        ("onnx",),
    ),
    "weights of which half is lost": (
        """
        import onnx, os
        save = onnx.save_model
        def lose(model, path, **options):
            save(model, path, **options)
            beside = os.path.join(os.path.dirname(path), options["location"])
            with open(beside, "r+b") as stream:
                stream.truncate(os.path.getsize(beside) // 2)
        onnx.save_model = lose
        """,
        {"external_data": "session-failed"},
        ("onnx",),
    ),
}


def of_one_exporter(row):
    """The other has the same checks, where this torch has it."""
    return {check: code for check, code in row[1].items() if not check.startswith("dynamo.")}


@pytest.mark.parametrize("name", faults("onnx_round_trip", ONNX_FAULTS, of_one_exporter))
def test_faults_of_the_exports_beside_the_default(run, python, name):
    fault, expected, packages = ONNX_FAULTS[name]
    needs(python, *packages)
    if "torchscript.fp16" in expected and not facts(python)["halves"]:
        pytest.skip("this torch runs no fp16 on a CPU")
    _, checks = run("onnx_round_trip", fault=fault)
    applies = {check: code for check, code in expected.items() if checks[check]["code"] != "not-applicable"}
    if not applies:
        pytest.skip(f"{', '.join(expected)} does not apply to this stack")
    assert applies.items() <= codes(checks).items(), codes(checks)


@fault("card", {"attention_kernels": "attention-differs"})
def test_an_attention_kernel_that_is_wrong(run, python):
    if not facts(python)["chooses"]:
        pytest.skip("this torch lets no attention kernel be chosen")
    fault = """
        import torch
        real = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda *args, **kwargs: real(*args, **kwargs) * 1.01
    """
    _, checks = run("card", params={"device": "cpu"}, fault=fault)
    assert codes(checks) == {"attention_kernels": "attention-differs"}
