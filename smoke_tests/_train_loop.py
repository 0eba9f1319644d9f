"""The training loop of train_step, as people write it, and what it records on the way."""

import math

import _bert


class Loop:
    """The training loop and what it recorded on the way."""

    def __init__(self, ctx, torch):
        params = ctx.params
        self.ctx, self.torch, self.device = ctx, torch, ctx.environment["device"]
        self.precision, self.half, self.why_not_half = choose_precision(params["precision"], torch, self.device)
        settings = _bert.config(
            ctx,
            vocab=params["vocab"],
            hidden=params["hidden"],
            layers=params["layers"],
            heads=params["heads"],
            intermediate=4 * params["hidden"],
            positions=max(64, params["seq"]),
        )
        self.model = _bert.classifier(ctx, settings).to(self.device).train()
        self.names = [name for name, _ in self.model.named_parameters()]
        self.weights_before = {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(
            [
                {"params": self.decayed(True), "weight_decay": params["weight_decay"]},
                {"params": self.decayed(False), "weight_decay": 0.0},
            ],
            lr=params["learning_rate"],
        )
        self.schedule = ctx.stack("transformers", "get_linear_schedule_with_warmup").get_linear_schedule_with_warmup(
            self.optimizer, params["warmup_steps"], params["steps"]
        )
        self.scaler = _bert.new_scaler(torch, self.device) if self.half is torch.float16 else None
        self.batches = fixed_task(torch, params, self.device)
        self.losses, self.norms, self.clipped_norms, self.rates, self.scales = [], [], [], [], []
        self.gradient_seen = dict.fromkeys(self.names, False)
        self.moves = dict.fromkeys(self.names, 0.0)
        self.linear_outputs = {}
        self.loss_place = None

    def decayed(self, wanted):
        """Matrices decay; biases and LayerNorm weights, which have one dimension, do not."""
        return [tensor for tensor in self.model.parameters() if (tensor.dim() > 1) is wanted]

    def forward(self, step):
        batch = self.batches[step % len(self.batches)]
        with _bert.autocast(self.torch, self.device, self.half):
            output = self.model(**batch)
        return output.loss, output.logits

    def train(self):
        hooks = [
            module.register_forward_hook(self.note_output(name))
            for name, module in self.model.named_modules()
            if isinstance(module, self.torch.nn.Linear)
        ]
        for step in range(self.ctx.params["steps"]):
            self.one_step(step)
            self.note_moves()
        for hook in hooks:
            hook.remove()

    def note_output(self, name):
        def note(_module, _inputs, output):
            self.linear_outputs[name] = str(output.dtype)

        return note

    def note_moves(self):
        """The farthest each tensor ever was from its start: a bias may well come back near it."""
        for name, tensor in self.model.named_parameters():
            move = float((tensor.detach() - self.weights_before[name]).abs().max())
            self.moves[name] = max(self.moves[name], move)

    def one_step(self, step):
        torch = self.torch
        self.optimizer.zero_grad()
        loss, _ = self.forward(step)
        self.loss_place = loss.device.type
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
        for name, tensor in self.model.named_parameters():
            if tensor.grad is not None and not self.gradient_seen[name]:
                self.gradient_seen[name] = bool((tensor.grad != 0).any())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.ctx.params["clip_norm"])
        self.norms.append(float(norm))
        if math.isfinite(self.norms[-1]):
            self.clipped_norms.append(total_norm([t.grad for t in self.model.parameters() if t.grad is not None]))
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scales.append(float(self.scaler.get_scale()))
        self.schedule.step()
        self.losses.append(float(loss.detach()))


def choose_precision(asked, torch, device):
    """(name, half type or None, why it is None)."""
    if asked == "auto":
        asked = "fp16" if device == "cuda" else "bf16"
    if asked == "fp32":
        return "fp32", None, "the request asks for it"
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[asked]
    if device == "cpu" and not hasattr(torch, "autocast"):
        return "fp32", None, "torch {} has no autocast on a CPU".format(torch.__version__)
    return asked, half, None


def fixed_task(torch, params, device):
    """Four fixed batches. The label says from which half of the vocabulary most tokens are: easy, but not constant."""
    generator = torch.Generator().manual_seed(params["seed"])
    batch, seq, vocab = params["batch"], params["seq"], params["vocab"]
    batches = []
    for _ in range(4):
        labels = (torch.arange(batch) % 3 == 0).long()  # uneven, so that the classifier's bias has something to learn
        from_own = torch.rand(batch, seq, generator=generator) < 0.8
        tokens = torch.randint(5, vocab // 2, (batch, seq), generator=generator)
        upper = (labels[:, None] == 1) == from_own
        ids = tokens + upper.long() * (vocab // 2 - 5)
        mask = torch.ones(batch, seq, dtype=torch.long)
        mask[: batch // 4, seq - seq // 4 :] = 0  # some rows are padded
        batches.append({"input_ids": ids.to(device), "attention_mask": mask.to(device), "labels": labels.to(device)})
    return batches


def total_norm(tensors):
    """Computed here and not by the stack, whose clipping it judges."""
    return math.sqrt(sum(float((tensor.detach().double() ** 2).sum()) for tensor in tensors))
