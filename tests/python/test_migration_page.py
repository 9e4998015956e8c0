"""The Python of docs/migrating-from-flash-attention.md, run from top to bottom."""

import pathlib
import re
import runpy

import pytest

import tilewright
from tilewright import UnsupportedError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "migrating-from-flash-attention.md"


def test_the_page_runs(tmp_path):
    torch.manual_seed(0)
    torch.compiler.reset()
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    try:
        names = runpy.run_path(str(script))
    except UnsupportedError as error:
        pytest.skip(str(error))
    expected = tilewright.attention(*(names[x][None] for x in "qkv"))
    torch.testing.assert_close(names["merged"], expected.float(), rtol=0, atol=1e-2)
    assert names["logits"].isfinite().all()
