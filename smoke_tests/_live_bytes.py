"""How many bytes of tensors one training step has alive at most, counted under a dispatch mode.

The same count on real CPU tensors and on tensors of the meta device, which have sizes and no data, is equal to the
byte: then this image's model code and torch behave in a trace as they do in a run, which is what an estimate rests on.
"""

import weakref

# Weak references of storages die early before 2.2, and meta kernels of the optimizers are missing before 2.6.
OLDEST_TORCH = (2, 6)
# Single numbers do not count: an optimizer keeps its step counts on the CPU wherever the model is.
ONE_NUMBER = 8


def can_trace(torch):
    return version_of(torch) >= OLDEST_TORCH


def version_of(torch):
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def new_tracker(torch, device):
    """A mode with `peak`: the most bytes that were alive at once on `device`."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten

    class Tracker(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.sizes = {}
            self.alive = 0
            self.peak = 0

        def see(self, tensor):
            if not isinstance(tensor, torch.Tensor) or tensor.device.type != device:
                return
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()  # noqa: SLF001
            if size <= ONE_NUMBER:
                return
            if key in self.sizes:
                ref, known = self.sizes[key]
                if ref() is not None and known == size:
                    return
                self.drop(key, ref)
            self.sizes[key] = (weakref.ref(storage, lambda ref, key=key: self.drop(key, ref)), size)
            self.alive += size
            self.peak = max(self.peak, self.alive)

        def drop(self, key, ref):
            if key in self.sizes and self.sizes[key][0] is ref:
                self.alive -= self.sizes.pop(key)[1]

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if device == "meta" and func.__name__.startswith("_local_scalar_dense"):
                return 1.0  # an optimizer asks for the value of a number
            result = func(*args, **(kwargs or {}))
            for leaf in tree_flatten(result)[0]:
                self.see(leaf)
            return result

    return Tracker()


def new_answers(torch):
    """Answers questions about data that a meta tensor does not have, such as "is this mask all ones": yes."""
    from torch.overrides import TorchFunctionMode

    questions = (torch.Tensor.__bool__, torch.Tensor.item)

    class Answers(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in questions and args[0].device.type == "meta":
                return True
            return func(*args, **(kwargs or {}))

    return Answers()


def peak_live_bytes(torch, build, device, batch, seq, steps=2):
    """`build` makes the model; the loop is AdamW, one tensor at a time, with clipping, in fp32."""
    with torch.device(device):
        model = build().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=False)
    tracker = new_tracker(torch, device)
    for tensor in list(model.parameters()) + list(model.buffers()):
        tracker.see(tensor)
    for _ in range(steps):
        with tracker, new_answers(torch):
            optimizer.zero_grad(set_to_none=True)
            inputs = torch.zeros(batch, seq, dtype=torch.long, device=device)
            labels = torch.zeros(batch, dtype=torch.long, device=device)
            loss = model(input_ids=inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            del inputs, labels, loss
    return tracker.peak
