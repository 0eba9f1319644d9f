"""Just enough of the ONNX file format to ask a runtime what it reads and a file what it holds, without onnx installed.

Field numbers are those of onnx.proto: ModelProto {1 ir_version, 7 graph, 8 opset_import}, GraphProto {1 node, 2 name,
11 input, 12 output}, NodeProto {1 input, 2 output, 4 op_type}, ValueInfoProto {1 name, 2 type}, TypeProto
{1 tensor_type}, TypeProto.Tensor {1 elem_type, 2 shape}, OperatorSetIdProto {1 domain, 2 version}.
"""

FLOAT = 1
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number_field(field, value):
    return varint(field << 3 | VARINT) + varint(value)


def bytes_field(field, value):
    if isinstance(value, str):
        value = value.encode("utf-8")
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def identity_model(opset, ir_version):
    """A model of one Identity node: what keeps a runtime from loading it is its opset or its IR version."""
    shape = bytes_field(1, number_field(1, 1))
    tensor_type = bytes_field(1, number_field(1, FLOAT) + bytes_field(2, shape))
    node = bytes_field(1, "x") + bytes_field(2, "y") + bytes_field(4, "Identity")
    graph = bytes_field(1, node) + bytes_field(2, "g")
    for field, name in ((11, "x"), (12, "y")):
        graph += bytes_field(field, bytes_field(1, name) + bytes_field(2, tensor_type))
    return (
        number_field(1, ir_version)
        + bytes_field(7, graph)
        + bytes_field(8, bytes_field(1, "") + number_field(2, opset))
    )


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def fields(data):
    """(field number, value) of one message; a value is a number or the bytes of what is nested."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
        else:
            if kind == BYTES:
                length, at = read_varint(data, at)
            elif kind in (FIXED64, FIXED32):
                length = 8 if kind == FIXED64 else 4
            else:
                raise ValueError("not an ONNX file: field {} has the unknown kind {}".format(field, kind))
            if at + length > len(data):
                raise ValueError("not a whole ONNX file: it ends inside field {}".format(field))
            value, at = data[at : at + length], at + length
        yield field, value


def versions(data):
    """(opset of the standard domain, IR version) of a model file; ValueError when it is none or cut off."""
    opset, ir_version = None, None
    for field, value in fields(data):
        if field == 1:
            ir_version = value
        elif field == 8:
            entry = dict(fields(value))
            if entry.get(1, b"") in (b"", b"ai.onnx"):
                opset = entry.get(2)
    if opset is None or ir_version is None:
        raise ValueError("not an ONNX file: no opset or IR version in it")
    return opset, ir_version
