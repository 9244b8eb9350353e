"""The names that voirkit promises are there, and no others."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from voirkit.instrument import resolve

PUBLIC = {
    "voirkit": ["Instrument", "Option", "Overseer", "Probe", "Section", "SelectorError", "StopProgram", "VoirkitError", "__version__", "ai", "configurable", "gated", "give", "given",
                "global_probe", "instrument_definition", "iterate", "log", "open_run", "parametrized", "probing", "refstring", "run", "tag"],
    "voirkit.ai": ["Node", "ai", "checkpoint", "comm", "compute", "data", "dataloader", "device", "other", "pipeline"],
    "voirkit.dftracer": ["ai", "checkpoint", "comm", "compute", "data", "dataloader", "device", "dft_fn", "dftracer", "pipeline"],
    "voirkit.phases": ["BaseOverseer", "GivenOverseer", "OverseerAbort", "Phase", "PhaseSequence", "StopProgram"],
    "voirkit.options": ["ExtendedArgumentParser"],
    "voirkit.multiplexer": ["LogEntry", "Multiplexer", "run"],
    "voirkit.escape": ["Decoder", "decode_escape_sequence", "encode_as_escape_sequence"],
    "voirkit_instruments.options": ["instrument_argparse"],
    "voirkit_instruments.rates": ["instrument_rates"],
    "voirkit_instruments.rate": ["rate"],
    "voirkit_instruments.log": ["instrument_log", "log"],
    "voirkit_instruments.early_stop": ["early_stop", "instrument_early_stop"],
    "voirkit_instruments.display": ["instrument_display"],
    "voirkit_instruments.dash": ["dash", "instrument_dash"],
    "voirkit_instruments.verify": ["instrument_verify"],
}  # fmt: skip


@pytest.mark.parametrize("module", PUBLIC)
def test_the_names_are_there(module: str) -> None:
    found = import_module(module)
    for name in PUBLIC[module]:
        assert hasattr(found, name), name


def test_voirkit_exports_these_and_no_others() -> None:
    import voirkit

    assert sorted(voirkit.__all__) == PUBLIC["voirkit"]
    assert set(PUBLIC["voirkit"]) <= set(dir(voirkit))


def test_every_module_that_a_declaration_names_has_what_it_names() -> None:
    """An arrow must not hide in a string either: the framework's own name none of the instruments."""
    root = Path(__file__).parent.parent
    names = {
        (path.relative_to(root).parts[0], name)
        for folder in ("voirkit", "instruments")
        for path in (root / folder).rglob("*.py")
        for name in re.findall(r'"(voirkit\w*(?:\.\w+)*:\w+)"', path.read_text(encoding="utf-8"))
    }
    assert len(names) > 60
    assert [
        name
        for folder, name in names
        if folder == "voirkit" and name.startswith("voirkit_instruments")
    ] == []
    for _, name in names:
        assert resolve(name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    import voirkit

    with pytest.raises(AttributeError, match="no_such_name"):
        _ = voirkit.no_such_name


@pytest.mark.parametrize(
    "heavy",
    ["giving", "reactivex", "ptera", "rich", "numpy", "duckdb", "torch", "yaml", "wrapt", "asyncio", "inspect", "ast", "shutil", "threading", "typing",
     "voirkit_instruments.dash.record", "voirkit_instruments.monitor.record"],
)  # fmt: skip
def test_a_run_without_a_voirfile_does_not_import(heavy: str, tmp_path: object) -> None:
    # python 3.14 imports inspect and ast itself, for the colours of the help of any option
    code = (
        "import sys, argparse\n"
        "argparse.ArgumentParser().add_argument('--option')\n"
        f"if {heavy!r} in sys.modules: sys.exit(0)\n"
        "import voirkit.cli\n"
        f"code = voirkit.cli.main(['--run-dir', {str(tmp_path)!r} + '/run', '-m', 'this'])\n"
        f"sys.exit(5 if {heavy!r} in sys.modules else code)\n"
    )
    # In a folder without a pyproject.toml, which would be read as configuration.
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, cwd=str(tmp_path)
    )
    assert ended.returncode == 0
