"""The smoke scripts on real stacks: they pass where all is well, and each check fails with its own code elsewhere.

The faults are put in by a sitecustomize module that patches the stack before a script imports it; the scripts know
nothing of them.
"""

from __future__ import annotations

import subprocess

import pytest
from seeded import fault, faults
from stacks import allowed_seconds, codes, facts, installed

pytestmark = pytest.mark.stack

SMALL_BERT = {
    "layers": 1,
    "hidden": 32,
    "heads": 2,
    "intermediate": 64,
    "vocab": 128,
    "positions": 32,
    "batch": 2,
    "seq": 16,
}


@pytest.mark.parametrize("script", ["probe", "train_step", "vram_peak", "onnx_round_trip"])
def test_passes_where_all_is_well(run, script):
    document, checks = run(script)
    assert codes(checks) == {}
    assert document["seconds"] < allowed_seconds()
    statuses = {check["level"]: set() for check in checks.values()}
    for check in checks.values():
        if check["code"] != "not-applicable":
            statuses[check["level"]].add(check["status"])
    if script == "train_step":
        assert statuses["L3" if document["environment"]["device"] == "cuda" else "L2"] == {"passed"}
    if script == "onnx_round_trip":
        assert statuses["L2"] == {"passed"}


def test_every_exporter_of_this_torch_was_used(run, python):
    _, checks = run("onnx_round_trip")
    assert checks["torchscript.outputs_agree"]["status"] == "passed"
    if facts(python)["dynamo"] and "onnxscript" in installed(python):
        assert checks["dynamo.outputs_agree"]["status"] == "passed"
    assert checks["torchscript.provider"]["measured"].keys() == {"CPUExecutionProvider"}


def test_loss_scaling_runs_where_a_cpu_has_it(run, python):
    if not facts(python)["cpu_scaler"]:
        pytest.skip("this torch scales no loss on a CPU")
    _, checks = run("train_step", params={"device": "cpu", "precision": "fp16"})
    assert codes(checks) == {}
    assert checks["scale_kept"]["status"] == "passed"


def test_same_seed_same_losses(run):
    first, second = (run("train_step", params={"device": "cpu"})[1]["loss_falls"]["details"] for _ in range(2))
    assert first == second


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-single", "sgd"])
@pytest.mark.parametrize("zero_grad", ["none", "zero"])
def test_the_measured_loop_runs_on_a_cpu(run, optimizer, zero_grad):
    params = {**SMALL_BERT, "device": "cpu", "optimizer": optimizer, "zero_grad": zero_grad, "padded_mask": True}
    _, checks = run("vram_peak", params={**params, "precision": "bf16"})
    assert checks["loop"]["status"] == "not-checked"
    assert checks["loop"]["message"] == "the loop ran on the CPU, where nothing is measured"
    assert checks["loop"]["details"]["loop"]["optimizer"].startswith(optimizer)


def test_the_described_model_is_the_model(run, python):
    _, checks = run("vram_peak", params={**SMALL_BERT, "device": "cpu", "precision": "fp32"})
    described = checks["loop"]["details"]["loop"]
    code = (
        "import transformers as t; print(sum(p.numel() for p in t.BertForSequenceClassification(t.BertConfig("
        "vocab_size=128,hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=32)).parameters()))"
    )
    counted = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert described["parameters"] == int(counted.stdout)
    assert described["attention"] in ("eager", "sdpa")


TRAIN_FAULTS = {
    "optimizer that does not step": (
        """
        import torch
        torch.optim.AdamW.step = lambda self, closure=None: None
        """,
        {"weights_change": "weights-unchanged", "optimizer_steps": "steps-skipped", "loss_falls": "loss-not-falling"},
    ),
    "one tensor never updated": (
        """
        import torch
        step = torch.optim.AdamW.step
        def keep_first(self, *args, **kwargs):
            first = self.param_groups[0]["params"][0]
            before = first.detach().clone()
            step(self, *args, **kwargs)
            first.data.copy_(before)
        torch.optim.AdamW.step = keep_first
        """,
        {"weights_change": "weights-unchanged"},
    ),
    "constant loss": (
        """
        import transformers
        forward = transformers.BertForSequenceClassification.forward
        def constant(self, *args, **kwargs):
            output = forward(self, *args, **kwargs)
            output.loss = output.loss * 0 + 0.7
            return output
        transformers.BertForSequenceClassification.forward = constant
        """,
        {"loss_falls": "loss-not-falling", "gradients_reach_all": "gradient-missing"},
    ),
    "frozen embeddings": (
        """
        import transformers
        init = transformers.BertForSequenceClassification.__init__
        def frozen(self, *args, **kwargs):
            init(self, *args, **kwargs)
            for tensor in self.bert.embeddings.parameters():
                tensor.requires_grad_(False)
        transformers.BertForSequenceClassification.__init__ = frozen
        """,
        {"gradients_reach_all": "gradient-missing", "weights_change": "weights-unchanged"},
    ),
    "NaN loss": (
        """
        import transformers
        forward = transformers.BertForSequenceClassification.forward
        def broken(self, *args, **kwargs):
            output = forward(self, *args, **kwargs)
            output.loss = output.loss * float("nan")
            return output
        transformers.BertForSequenceClassification.forward = broken
        """,
        {
            "loss_finite": "loss-not-finite",
            "gradients_finite": "gradients-not-finite",
            "weights_finite": "weights-not-finite",
        },
    ),
    "clipping that does not clip": (
        """
        import torch
        torch.nn.utils.clip_grad_norm_ = lambda parameters, limit: torch.tensor(1.0)
        """,
        {"clip_applied": "clip-not-applied"},
    ),
    "autocast that does nothing": (
        """
        import contextlib, torch
        @contextlib.contextmanager
        def nothing(*args, **kwargs):
            yield
        torch.autocast = nothing
        """,
        {"half_precision_used": "autocast-not-half"},
    ),
    "schedule that stands still": (
        """
        from torch.optim import lr_scheduler
        lr_scheduler.LambdaLR.step = lambda self, epoch=None: None
        """,
        {"warmup_followed": "schedule-wrong"},
    ),
    "step that raises": (
        """
        import torch
        def raises(*args, **kwargs):
            raise RuntimeError("no kernel image is available for execution on the device")
        torch.nn.utils.clip_grad_norm_ = raises
        """,
        {"run": "step-failed"},
    ),
    "model that cannot be made": (
        """
        import transformers
        def raises(*args, **kwargs):
            raise RuntimeError("operator does not exist")
        transformers.BertForSequenceClassification.__init__ = raises
        """,
        {"run": "model-failed"},
    ),
    "torch that does not import": (
        """
        import sys
        class Broken:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    raise OSError("libcudnn.so.8: cannot open shared object file")
        sys.meta_path.insert(0, Broken())
        """,
        {"run": "import-failed"},
    ),
}


@pytest.mark.parametrize("name", faults("train_step", TRAIN_FAULTS))
def test_train_step_fails_with_its_own_code(run, name):
    fault, expected = TRAIN_FAULTS[name]
    _, checks = run("train_step", params={"device": "cpu"}, fault=fault)
    found = codes(checks)
    assert {check: found.get(check) for check in expected} == expected, found


@fault("train_step", {"optimizer_steps": "steps-skipped", "scale_kept": "scale-collapsed"})
def test_a_collapsing_scale_is_found(run, python):
    if not facts(python)["cpu_scaler"]:
        pytest.skip("this torch scales no loss on a CPU")
    _, checks = run("train_step", params={"device": "cpu", "precision": "fp16"}, fault=TRAIN_FAULTS["NaN loss"][0])
    assert codes(checks) == {
        "loss_finite": "loss-not-finite",
        "gradients_finite": "gradients-not-finite",
        "weights_change": "weights-unchanged",
        "optimizer_steps": "steps-skipped",
        "scale_kept": "scale-collapsed",
        # NaN equals nothing, itself included.
        "accumulation": "accumulation-differs",
        "checkpoint": "resume-differs",
        "seed": "seed-not-repeatable",
    }


@fault("train_step", {"run": "gpu-not-usable"})
def test_a_gpu_that_is_asked_for_and_missing(run, python):
    if facts(python)["gpu"]:
        pytest.skip("this machine has a GPU")
    _, checks = run("train_step", params={"device": "cuda"})
    assert codes(checks) == {"run": "gpu-not-usable"}
    assert checks["run"]["blame"] == "host"


@fault("vram_peak", {"loop": "step-failed"})
def test_a_loop_that_does_not_run(run):
    params = {**SMALL_BERT, "device": "cpu", "precision": "bf16"}
    _, checks = run("vram_peak", params=params, fault=TRAIN_FAULTS["step that raises"][0])
    found = codes(checks)
    # Where this torch can be traced, the step that raises is met there a second time.
    assert found.pop("live_bytes", "trace-failed") == "trace-failed"
    assert found == {"loop": "step-failed"}


AROUND_EXPORT = """
    import inspect, os, torch
    export = torch.onnx.export
    signature = inspect.signature(export)
    def around(model, args, path, **options):
        {before}
        export(model, args, path, **options)
        {after}
    around.__signature__ = signature
    torch.onnx.export = around
"""


def around_export(before="pass", after="pass"):
    return AROUND_EXPORT.format(before=before, after=after)


IN_BYTES = "data = open(path, 'rb').read(); open(path, 'wb').write({})"
FORWARD = """
    import torch, transformers
    forward = transformers.BertForSequenceClassification.forward
    def changed(self, *args, **kwargs):
        {}
        output = forward(self, *args, **kwargs)
        {}
        return output
    transformers.BertForSequenceClassification.forward = changed
"""
ONNX_FAULTS = {
    "export that raises": (around_export("raise RuntimeError('unsupported operator')"), "export", "export-failed"),
    "export without a file": (around_export(after="os.remove(path)"), "export", "export-failed"),
    "export cut off": (around_export(after=IN_BYTES.format("data[:-40]")), "opset", "file-broken"),
    "newer IR version": (
        around_export(after=IN_BYTES.format("data[:1] + bytes([100]) + data[2:]")),
        "opset",
        "ir-too-high",
    ),
    "unknown operator": (
        around_export(after=IN_BYTES.format("data.replace(b'Gemm', b'Gexx')")),
        "session",
        "session-failed",
    ),
    "fixed shapes": (
        around_export("options.pop('dynamic_axes', None); options.pop('dynamic_shapes', None)"),
        "dynamic_shapes",
        "shape-not-dynamic",
    ),
    "other weights": (
        around_export("bias = model.inner.classifier.bias; bias.data += 1", "bias.data -= 1"),
        "outputs_agree",
        "outputs-differ",
    ),
}


@pytest.mark.parametrize("name", faults("onnx_round_trip", ONNX_FAULTS, lambda row: {f"torchscript.{row[1]}": row[2]}))
def test_onnx_round_trip_fails_with_its_own_code(run, name):
    fault, check, code = ONNX_FAULTS[name]
    _, checks = run("onnx_round_trip", fault=fault)
    ways = [way for way in ("torchscript", "dynamo") if checks[f"{way}.export"]["code"] != "not-applicable"]
    assert codes(checks) == {f"{way}.{check}": code for way in ways}


@fault("onnx_round_trip", {"torchscript.export": "opset-too-high"})
def test_an_opset_that_the_runtime_does_not_read(run):
    _, checks = run("onnx_round_trip", params={"opset": 60})
    assert set(codes(checks).values()) == {"opset-too-high"}
    assert "reads up to" in checks["torchscript.export"]["message"]


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        pytest.param(
            "kwargs['attention_mask'] = None",
            "pass",
            "mask-without-effect",
            marks=fault("onnx_round_trip", {"model": "mask-without-effect"}),
        ),
        pytest.param(
            "pass",
            "output.logits = output.logits + torch.rand(1)",
            "model-not-repeatable",
            marks=fault("onnx_round_trip", {"model": "model-not-repeatable"}),
        ),
        pytest.param(
            "raise RuntimeError('operator does not exist')",
            "pass",
            "model-failed",
            marks=fault("onnx_round_trip", {"model": "model-failed"}),
        ),
    ],
)
def test_a_model_that_cannot_be_compared(run, before, after, code):
    _, checks = run("onnx_round_trip", fault=FORWARD.format(before, after))
    assert codes(checks) == {"model": code}


@fault("onnx_round_trip", {"runtime_reads": "session-failed"})
def test_a_runtime_that_loads_nothing(run):
    """Patched while it is imported: onnxruntime 1.32 aborts at the end of a fork that was made after its import."""
    fault = """
        import importlib.util, sys
        def raises(*args, **kwargs):
            raise RuntimeError("libonnxruntime is broken")
        class Late:
            def find_spec(self, name, path=None, target=None):
                if name != "onnxruntime":
                    return None
                sys.meta_path.remove(self)
                spec = importlib.util.find_spec(name)
                load = spec.loader.exec_module
                def broken(module):
                    load(module)
                    module.InferenceSession = raises
                spec.loader.exec_module = broken
                return spec
        sys.meta_path.insert(0, Late())
    """
    assert codes(run("onnx_round_trip", fault=fault)[1]) == {"runtime_reads": "session-failed"}


def test_a_cuda_provider_that_is_not_there_is_not_claimed(run, python):
    if facts(python)["gpu"]:
        pytest.skip("this machine has a GPU")
    _, checks = run("onnx_round_trip", params={"provider": "CUDAExecutionProvider"})
    # onnxruntime-gpu 1.21.1 does not fall back where no driver is loaded: it crashes
    assert codes(checks) in ({"cuda_provider": "provider-fell-back"}, {"cuda_provider": "crashed"})
    assert checks["torchscript.provider"]["status"] == "passed"
    assert checks["cuda_provider"]["level"] == "L3"


def test_a_lock_without_onnxruntime(run, python):
    packages = {name: version for name, version in installed(python).items() if not name.startswith("onnxruntime")}
    _, checks = run("onnx_round_trip", packages=packages)
    assert {check["code"] for check in checks.values()} == {"not-applicable"}


@fault("probe", {"versions_match": "version-mismatch"})
def test_probe_against_another_torch(run, python):
    _, checks = run("probe", packages={**installed(python), "torch": "0.4.1"})
    assert codes(checks) == {"versions_match": "version-mismatch"}


def test_probe_against_a_card_that_no_build_covers(run, python):
    _, checks = run("probe", gpus=[{"name": "Tesla C2050", "compute_capability": "2.0"}])
    assert codes(checks) == {
        "arch_list": "cpu-build-for-gpu-target" if facts(python)["variant"] == "cpu" else "arch-not-covered"
    }


@fault("probe", {"numpy_conversion": "numpy-abi"})
def test_probe_numpy_that_torch_was_not_built_for(run):
    fault = """
        import torch
        def raises(*args):
            raise RuntimeError("Numpy is not available")
        torch.from_numpy = raises
    """
    assert codes(run("probe", fault=fault)[1]) == {"numpy_conversion": "numpy-abi"}


def test_nothing_is_written_outside_the_scratch_folder(run, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    run("onnx_round_trip")
    assert list(home.rglob("*")) == []
