"""Which execution provider really ran an ONNX model. Pure functions, no onnxruntime."""

from _harness import Failed, Passed

# Where the time of a model goes: these have to run on the provider that is claimed.
HEAVY = ("MatMul", "Gemm", "FusedMatMul", "Attention", "MultiHeadAttention", "QAttention", "FusedGemm")


def count_placement(events):
    seen = {}
    for event in events:
        details = event.get("args", {})
        if event.get("cat") == "Node" and details.get("provider"):
            node = details.get("node_index"), event.get("name")
            seen.setdefault(details["provider"], {})[node] = details.get("op_name", "?")
    placed = {}
    for provider, nodes in seen.items():
        operators = placed.setdefault(provider, {})
        for operator in nodes.values():
            operators[operator] = operators.get(operator, 0) + 1
    return placed


def judge_placement(wanted, registered, placed):
    """Did `wanted` do the work? `placed` is {provider: {operator: number of nodes}} as the profile saw them run."""
    nodes = {provider: sum(operators.values()) for provider, operators in placed.items()}
    elsewhere = {
        provider: {name: number for name, number in operators.items() if name in HEAVY}
        for provider, operators in placed.items()
        if provider != wanted
    }
    heavy_elsewhere = {provider: operators for provider, operators in elsewhere.items() if operators}
    heavy_here = sum(number for name, number in placed.get(wanted, {}).items() if name in HEAVY)
    values = {"measured": nodes, "expected": wanted, "registered": list(registered), "operators": placed}
    if wanted not in registered:
        reason = "{} was asked for, onnxruntime took {}".format(wanted, ", ".join(registered) or "none")
    elif heavy_elsewhere or not heavy_here:
        reason = "{} is registered, but the heavy nodes ran elsewhere: {}".format(wanted, heavy_elsewhere or nodes)
    else:
        share = "{} of {} nodes".format(nodes[wanted], sum(nodes.values()))
        return Passed("{} ran {}, all matrix products among them".format(wanted, share), **values)
    return Failed("provider-fell-back", reason, **values)
