"""Does to a test's tree what pytest does before it compiles it, so that its ``assert`` says as much under a probe.

Never imports pytest.  Checked with 8.0 and 9.2.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Sequence
    from types import CodeType

OWN = "@py"  # how the variables begin that pytest puts into functions


def rewrite(tree: ast.Module, code: CodeType, lines: Sequence[str]) -> None:
    """Rewrite the ``assert`` statements in a tree, if pytest has rewritten those of some code."""
    if not any(name.startswith(OWN) for name in (*code.co_varnames, *code.co_names)):
        return
    module: Any = sys.modules.get("_pytest.assertion.rewrite")
    hook = next((f for f in sys.meta_path if module is not None and isinstance(f, module.AssertionRewritingHook)), None)
    if hook is not None:
        module.rewrite_asserts(tree, "".join(lines).encode(), code.co_filename, hook.config)
