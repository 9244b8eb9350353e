# The Pythons that voirkit is for, oldest first, as pyproject.toml says; to be sourced in the project's folder.
pythons=$(sed -nE 's/.*"Programming Language :: Python :: (3\.[0-9]+)".*/\1/p' pyproject.toml)
newest=$(tail -n 1 <<<"$pythons")
# The tests that need no torch, no environment of their own and no hours.
chosen="not slow and not readers and not frameworks and not trackers and not torch"
# With CONTRACTS=1: what weaves, records, and reads Python's own signatures and command lines, whatever takes no time.
contracts=()
if [ -n "${CONTRACTS:-}" ]; then
  chosen="$chosen and not long"
  contracts=(tests/probes tests/trace tests/ai tests/test_{options,dataclass_options,inherit,fork,phases,streams,escape,patch_points,public_names,subprocesses,follow_words}.py)
fi
