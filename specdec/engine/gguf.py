"""`python -m specdec.engine.gguf FILE FOLDER`: convert the model of a GGUF file to a Hugging Face folder in bfloat16.

It requires the packages `gguf` and `accelerate`, which serving does not need; `specdec models get` installs them.
"""

import struct
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """Write configuration, weights, and tokenizer with its chat template.

    Raises:
        OSError, ValueError, ImportError: transformers cannot read the file.
    """
    source = {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **source).to(torch.bfloat16)
    # The weights are plain numbers now; transformers would refuse to save a model that it considers quantized.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(file: Path, folder: Path) -> int:
    """Convert a file and return the exit status: 1 if it cannot be read, with the reason on stderr."""
    try:
        convert(file, folder)
    except (OSError, ValueError, KeyError, IndexError, ImportError, struct.error) as error:
        first_line = str(error).strip().partition("\n")[0]
        sys.stderr.write(f"error: {first_line or type(error).__name__}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
