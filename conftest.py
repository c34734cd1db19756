"""Examples in docstrings of integrations run where their packages are installed."""

from importlib.util import find_spec

NEEDED = {
    "accelerate": ["src/neurogenesis/integrations/accelerate.py"],
    "transformers": ["src/neurogenesis/integrations/huggingface.py", "src/neurogenesis/integrations/pretrained.py"],
}
collect_ignore = [path for package, paths in NEEDED.items() if find_spec(package) is None for path in paths]
