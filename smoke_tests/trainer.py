"""L2: transformers' own Trainer, with a tokenizer built on the spot and a data set that is larger than its memory."""

import math
import os
import random
import sys

sys.dont_write_bytecode = not getattr(sys, "pycache_prefix", None)  # else compiled files would lie beside the stack

import _bert  # noqa: E402
from _harness import Failed, NotApplicable, NotChecked, Passed, Script, blame_stack  # noqa: E402

script = Script(
    "trainer",
    {
        "steps": 60,
        "batch": 8,
        "accumulation": 2,
        "warmup_steps": 4,
        "clip_norm": 1.0,
        "learning_rate": 2e-3,
        "rows": 256,
        "length": 16,
        "file_bytes": 96 * 2**20,  # of the mapped file
        "bound_bytes": 48 * 2**20,  # that reading it may add to the process's own memory
        "seed": 20,
    },
)
MIB = 2.0**20
LOSS_FACTOR = 0.8  # of the first four losses' mean
WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "cast", "the", "a", "was"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@script.check("tokenizer", "L2")
def tokenizer(ctx):
    """A tokenizer built on the spot reads a batch, pads it and tells the padding by its mask."""
    if needs_accelerate(ctx) and not has(ctx, "accelerate"):
        raise NotApplicable("this transformers' Trainer needs accelerate, which is not in the lock")
    kit = ctx.stack("tokenizers", "Tokenizer")
    fast = ctx.stack("transformers", "PreTrainedTokenizerFast").PreTrainedTokenizerFast
    try:
        models, splitters = ctx.stack("tokenizers.models"), ctx.stack("tokenizers.pre_tokenizers")
        words = {word: index for index, word in enumerate(SPECIAL + WORDS)}
        special = dict(zip(("pad_token", "unk_token"), SPECIAL))
        inner = kit.Tokenizer(models.WordLevel(words, unk_token=special["unk_token"]))
        inner.pre_tokenizer = splitters.Whitespace()
        made = fast(tokenizer_object=inner, **special)
        read = made(["the film was good", "bad"], padding="max_length", truncation=True, max_length=6)
    except Exception as error:
        raise blame_stack(error, "tokenizer-failed", "a tokenizer cannot be built") from None
    wanted = [[words[word] for word in ("the", "film", "was", "good")] + [0, 0], [words["bad"]] + [0] * 5]
    masks = [[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0]]
    if read["input_ids"] != wanted or read["attention_mask"] != masks:
        raise Failed("tokens-wrong", "the tokenizer reads something else", measured=dict(read), expected=wanted)
    ctx.made["tokenizer"] = made
    return Passed("{} words, read and padded in a batch".format(len(words)), measured=len(words))


@script.check("mapped_dataset", "L2", needs=["tokenizer"])
def mapped_dataset(ctx):
    """A file larger than the stated bound is read through `datasets` while the process grows by less than the bound."""
    module = ctx.optional("datasets")
    arrow = ctx.stack("pyarrow")
    path = os.path.join(ctx.scratch, "mapped.arrow")
    rows = write_arrow(arrow, path, ctx.params)
    size, bound = os.path.getsize(path), ctx.params["bound_bytes"]
    if size <= bound:
        raise NotChecked("the file of {:.0f} MiB is not larger than the bound".format(size / MIB))
    try:
        before = own_memory()
        data = module.Dataset.from_file(path)
        longest, count = 0, 0
        for start in range(0, len(data), 1000):
            texts = data[start : start + 1000]["text"]
            count += len(texts)
            longest = max(longest, len(texts[0]))
        grown = own_memory() - before
    except Exception as error:
        raise blame_stack(error, "dataset-failed", "the mapped file cannot be read") from None
    found = {"measured": grown, "expected": "<= {}".format(bound), "file_bytes": size, "rows": count}
    if count != rows:
        raise Failed("rows-wrong", "{} of {} rows were read".format(count, rows), **found)
    if grown > bound:
        raise Failed(
            "not-mapped",
            "reading {:.0f} MiB took {:.0f} MiB of memory, the bound is {:.0f} MiB".format(
                size / MIB, grown / MIB, bound / MIB
            ),
            **found,
        )
    ctx.made["mapped"] = data
    return Passed("{:.0f} MiB were read with {:.0f} MiB of memory".format(size / MIB, grown / MIB), **found)


@script.check("trains", "L2", needs=["tokenizer"])
def trains(ctx):
    """Trainer runs with accumulation, warm-up, clipping and half precision where it has it, and the loss falls."""
    torch = ctx.stack("torch")
    ctx.environment.update(torch=str(torch.__version__), device="cpu")
    torch.set_num_threads(1)
    transformers = ctx.stack("transformers", "Trainer", "TrainingArguments")
    _bert.seed_everything(torch, ctx.params["seed"])
    rows = tokenized(ctx, sentences(ctx.params))
    try:
        model = _bert.classifier(
            ctx, _bert.config(ctx, vocab=32, hidden=64, layers=2, heads=2, intermediate=128, positions=64)
        )
        recorder = recording(torch, model)
        arguments = training_arguments(ctx, transformers)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train()
    except Exception as error:
        raise blame_stack(error, "trainer-failed", "transformers.Trainer does not run") from None
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    ctx.made.update(recorder=recorder, rates=rates, torch=torch)
    first, last = sum(losses[:4]) / 4, sum(losses[-4:]) / 4
    found = {"measured": last, "expected": "<= {:.3g}".format(LOSS_FACTOR * first), "losses": losses}
    if len(losses) != ctx.params["steps"] or not all(map(math.isfinite, losses)):
        raise Failed("trainer-failed", "{} of {} steps logged a loss".format(len(losses), ctx.params["steps"]), **found)
    if not last <= LOSS_FACTOR * first:
        raise Failed("loss-not-falling", "loss went from {:.4g} to {:.4g}".format(first, last), **found)
    return Passed("loss fell from {:.4g} to {:.4g} in {} steps".format(first, last, len(losses)), **found)


@script.check("settings_followed", "L2", needs=["trains"])
def settings_followed(ctx):
    """What was asked of Trainer was done: two small batches a step, and a rate that warms up."""
    recorder, rates, params = ctx.made["recorder"], ctx.made["rates"], ctx.params
    wrong = []
    if recorder["forwards"] != params["steps"] * params["accumulation"]:
        wrong.append("{} forward passes in {} steps".format(recorder["forwards"], params["steps"]))
    if not rates or max(rates) < 0.5 * params["learning_rate"] or not rates[-1] < max(rates):
        wrong.append("rates are {}".format(rates))
    if wrong:
        raise Failed("setting-ignored", "; ".join(wrong), measured=wrong, expected=[])
    return Passed("accumulation and warm-up were done as asked", measured=recorder["forwards"], rates=rates)


@script.check("half_precision", "L2", needs=["trains"])
def half_precision(ctx):
    """A Trainer that was asked for half precision computes in it: the linear layers give bfloat16."""
    if not halves_on_cpu(ctx):
        raise NotApplicable("Trainer offers half precision on a CPU since transformers 4.20; it trained in float32")
    kinds = sorted(ctx.made["recorder"]["kinds"])
    found = {"measured": kinds, "expected": ["torch.bfloat16"]}
    if kinds != found["expected"]:
        raise Failed("setting-ignored", "linear layers gave {}".format(", ".join(kinds)), **found)
    return Passed("the linear layers gave bfloat16, as asked", **found)


def has(ctx, package):
    if ctx.packages:
        return package in ctx.packages
    try:
        __import__(package)
    except ImportError:
        return False
    return True


def needs_accelerate(ctx):
    """Since 4.30 Trainer hands the loop to it."""
    return release(ctx) >= (4, 30)


def halves_on_cpu(ctx):
    """Before 4.20 Trainer takes bf16 for a word about Ampere cards, and refuses it elsewhere."""
    return release(ctx) >= (4, 20)


def release(ctx):
    return tuple(int(part) for part in ctx.stack("transformers").__version__.split(".")[:2])


def training_arguments(ctx, transformers):
    import inspect

    known = inspect.signature(transformers.TrainingArguments.__init__).parameters
    params = ctx.params
    options = {
        "output_dir": os.path.join(ctx.scratch, "trainer"),
        "max_steps": params["steps"],
        "per_device_train_batch_size": params["batch"],
        "gradient_accumulation_steps": params["accumulation"],
        "warmup_steps": params["warmup_steps"],
        "max_grad_norm": params["clip_norm"],
        "learning_rate": params["learning_rate"],
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "bf16": halves_on_cpu(ctx),
        "seed": params["seed"],
        "save_strategy": "no",
        "use_cpu" if "use_cpu" in known else "no_cuda": True,
    }
    return transformers.TrainingArguments(**options)


def recording(torch, model):
    """Counts forward passes, and the kinds of numbers that linear layers give while training."""
    seen = {"forwards": 0, "kinds": set()}

    def count(_module, _inputs):
        seen["forwards"] += 1

    def note(_module, _inputs, output):
        seen["kinds"].add(str(output.dtype))

    model.register_forward_pre_hook(count)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(note)
    return seen


def sentences(params):
    chance = random.Random(params["seed"])  # noqa: S311 - data, no secret
    rows = []
    for _ in range(params["rows"]):
        label = chance.randrange(2)
        words = [chance.choice(WORDS[3 * (1 - label) : 3 * (1 - label) + 3]), *chance.sample(WORDS[6:], 4)]
        chance.shuffle(words)
        rows.append((" ".join(words), label))
    return rows


def tokenized(ctx, rows):
    """Through `datasets` in batches, where the lock has it; a plain list is a data set, too."""
    length = ctx.params["length"]

    def read(batch):
        return ctx.made["tokenizer"](batch["text"], padding="max_length", truncation=True, max_length=length)

    if has(ctx, "datasets"):
        module = ctx.stack("datasets")
        data = module.Dataset.from_dict({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        return data.map(read, batched=True, batch_size=64, remove_columns=["text"], keep_in_memory=True)
    whole = read({"text": [text for text, _ in rows]})
    names = ("input_ids", "attention_mask")
    return [dict({name: whole[name][index] for name in names}, label=label) for index, (_, label) in enumerate(rows)]


def write_arrow(arrow, path, params):
    """A file of the wanted size, written in batches; the number of its rows."""
    text = " ".join(WORDS) * 20
    schema = arrow.schema([("text", arrow.string())])
    rows = 0
    with arrow.OSFile(path, "wb") as sink, arrow.ipc.new_stream(sink, schema) as writer:
        while rows * len(text) < params["file_bytes"]:
            writer.write_batch(arrow.record_batch([arrow.array([text] * 1000)], schema=schema))
            rows += 1000
    return rows


def own_memory():
    """Bytes that belong to this process alone: pages of a mapped file are the system's to drop."""
    with open("/proc/self/status") as stream:
        for line in stream:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    raise NotChecked("this kernel does not tell a process's own memory")


if __name__ == "__main__":
    script.main()
