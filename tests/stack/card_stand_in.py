"""A stand-in for a card: torch is told that there is one, and what is meant for it runs on the CPU.

So every line that is meant for a card runs, with real numbers. What only a card can give (bytes in use, a name) is
made up here. Where a tensor really lies is not hidden: the checks that ask for it fail.
"""

TORCH = """
    import torch
    from torch.overrides import TorchFunctionMode

    def moved(value):
        kind = value.type if isinstance(value, torch.device) else value if isinstance(value, str) else ""
        return "cpu" if kind.partition(":")[0] == "cuda" else value

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            named = {name: moved(value) for name, value in (kwargs or {}).items()}
            return function(*[moved(value) for value in args], **named)

    OnTheCpu().__enter__()
    real_autocast = torch.autocast
    torch.autocast = lambda device, **options: real_autocast(moved(device), **options)

    MIB = 2**20
    free = iter([20000 * MIB] + [FREE_AFTER_MIB * MIB] * 9)
    card = torch.cuda
    card.is_available = lambda: True
    card.device_count = lambda: 1
    card.get_device_capability = lambda index=0: (8, 6)
    card.get_device_name = lambda index=0: "NVIDIA GeForce RTX 3090"
    card.synchronize = card.empty_cache = card.reset_peak_memory_stats = lambda *args: None
    card.manual_seed_all = lambda seed: None
    card.get_rng_state = torch.get_rng_state
    card.set_rng_state = torch.set_rng_state
    card.mem_get_info = lambda *args: (next(free), 24000 * MIB)
    reserved = iter([2 * MIB] + [1002 * MIB] * 9)
    card.memory_reserved = lambda *args: next(reserved)
    card.max_memory_allocated = lambda *args: 900 * MIB
    card.max_memory_reserved = lambda *args: 1000 * MIB
"""


def torch_on_a_card(free_after_mib: int = 18900) -> str:
    """For the `stand_in` of `run`: what the driver says is free once the loop has run."""
    return TORCH.replace("FREE_AFTER_MIB", str(free_after_mib))
