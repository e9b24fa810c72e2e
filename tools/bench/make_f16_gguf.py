#!/usr/bin/env python3
"""make_f16_gguf.py IN.gguf OUT.gguf: the same model with F16 matrices and F32 vectors.

Metadata is copied. So two programs can be compared on one file that neither has to dequantise.
Needs gguf and numpy.
"""

import sys
from pathlib import Path

import gguf
import numpy as np


def main(source: str, target: str) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    part = target + ".part"
    writer = gguf.GGUFWriter(part, architecture)
    for name, field in reader.fields.items():
        # The writer puts these itself.
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        if name == "general.quantization_version":
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=sub_type)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        values = values.astype(np.float16 if values.ndim > 1 else np.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    Path(part).rename(target)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
