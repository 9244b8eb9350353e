"""``voirkit completion SHELL``: prints a script that makes a shell complete voirkit's commands,
options and values.

The script is made from the parsers and works alone: completing starts no python. Behind SCRIPT
nothing is voirkit's, so files are offered there. Options of a voirfile are not known to it, those
of installed packages are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from voirkit.commands import printing
from voirkit.commands.command_lines import RUN, CommandLine, DescribedOption, command_lines
from voirkit.errors import CommandLineError, did_you_mean
from voirkit.options import ExtendedArgumentParser


def main(argv: Sequence[str]) -> int:
    """Print the script of a shell."""
    shell = main_parser().parse_args(argv).SHELL
    if shell not in SHELLS:
        hint = did_you_mean(shell or "", SHELLS) or f"voirkit completion {'|'.join(SHELLS)}"
        raise CommandLineError(
            f"{shell!r} is not a shell that is known." if shell else "no SHELL given.", next=hint
        )
    with printing():
        print(SHELLS[shell](command_lines()), end="")
    return 0


def main_parser() -> ExtendedArgumentParser:
    """Reads the command line."""
    parser = ExtendedArgumentParser(
        "voirkit completion",
        "voirkit completion bash|zsh|fish",
        description="Prints a script that makes a shell complete the command line of voirkit.",
        epilog=(
            'bash: eval "$(voirkit completion bash)" in ~/.bashrc\n'
            "zsh:  voirkit completion zsh > _voirkit, in a folder of $fpath\n"
            "fish: voirkit completion fish > ~/.config/fish/completions/voirkit.fish\n"
        ),
    )
    parser.add_argument("SHELL", nargs="?", help="bash, zsh or fish")
    return parser


def bash(lines: Sequence[CommandLine]) -> str:
    """For bash 4 and later; needs no bash-completion."""
    commands = [line.word for line in lines if line.word != RUN]
    by_key: dict[str, DescribedOption] = {}
    cases = []
    for line in lines:
        names = _quoted("\n".join(_names(line)))
        cases.append(f'            "{line.word}") words={names} ;;')
        for option in line.options():
            for name in option.names:
                by_key[f'"{line.word} {name}"'] = option
    needing = [key for key, option in by_key.items() if _needs_value(option)]
    values = []
    path_keys: dict[str, list[str]] = {"folder": [], "file": [], "": []}
    for key, option in by_key.items():
        if not option.value:
            continue
        if option.words:
            words = _quoted("\n".join(option.words))
            values.append(f"                {key}) words={words} ;;")
        else:
            path_keys[option.path_kind].append(key)
    lists = {
        "COMMANDS": "|".join(commands),
        "WORDS": _quoted("\n".join(commands)),
        "NEEDING": "|".join(needing),
        "VALUES": "\n".join(values),
        "FOLDERS": "|".join(path_keys["folder"]),
        "FILES": "|".join(path_keys["file"]),
        "OPTIONS": "\n".join(cases),
    }
    return _fill(_BASH, lists)


def zsh(lines: Sequence[CommandLine]) -> str:
    """A function for a folder of ``$fpath``."""
    commands = [f"    {_quoted(f'{line.word}:{line.what}')}" for line in lines if line.word != RUN]
    cases = []
    for line in lines[1:]:
        specs = " \\\n        ".join([*map(_zsh_option, line.options()), "'*:file:_files'"])
        cases.append(f"      ({line.word}) _arguments -S : \\\n        {specs} ;;")
    lists = {
        "COMMANDS": "\n".join(commands),
        "CASES": "\n".join(cases),
        "OPTIONS": " \\\n    ".join(map(_zsh_option, lines[0].options())),
    }
    return _fill(_ZSH, lists)


def fish(lines: Sequence[CommandLine]) -> str:
    """A file for a folder of ``$fish_complete_path``."""
    rows = []
    for line in lines[1:]:
        rows.append(
            f"complete -c voirkit -n __voirkit_begins -a {line.word} -d {_fish_quoted(line.what)}"
        )
    for line in lines:
        for option in line.options():
            rows.append(
                f"complete -c voirkit -n '__voirkit_reads {line.word or 'run'}'"
                f" {_fish_option(option)}"
            )
    needing = [
        name for option in lines[0].options() if _needs_value(option) for name in option.names
    ]
    lists = {
        "COMMANDS": " ".join(line.word for line in lines[1:]),
        "NEEDING": " ".join(needing),
        "ROWS": "\n".join(rows),
    }
    return _fill(_FISH, lists)


SHELLS: dict[str, Callable[[Sequence[CommandLine]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _needs_value(option: DescribedOption) -> bool:
    return bool(option.value) and not option.is_optional


def _names(line: CommandLine) -> list[str]:
    names = [name for option in line.options() for name in option.names]
    if line.word == RUN:
        names.append("-m")
    return names


def _fill(template: str, lists: dict[str, str]) -> str:
    for name, text in lists.items():
        template = template.replace(f"@{name}@", text)
    return template


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _brief(text: str) -> str:
    """The first part of a help text, of at most 80 characters."""
    text = text.partition(" (default")[0].partition(" (repeatable")[0]
    words = text.split()
    n_words = len(words)
    while len(" ".join(words)) > 80:
        words.pop()
    if len(words) == n_words:
        return text
    return " ".join(words).rstrip(",:;(")


def _zsh_option(option: DescribedOption) -> str:
    brief = _brief(option.help)
    for mark in "\\[]:":
        brief = brief.replace(mark, f"\\{mark}")
    value = ""
    separator = ""
    if option.value:
        if option.words:
            action = f"({' '.join(option.words)})"
        else:
            action = _ZSH_ACTIONS[option.path_kind]
        label = option.value.replace(":", "\\:")
        value = f":{label}:{action}"
        separator = "=-" if option.is_optional else "="
    specs = []
    for name in option.names:
        attached = separator if name.startswith("--") else ""
        specs.append(_quoted(f"*{name}{attached}[{brief}]{value}"))
    return " ".join(specs)


_ZSH_ACTIONS = {"file": "_files", "folder": "_files -/", "": " "}


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(option: DescribedOption) -> str:
    parts = [
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
    ]
    if _needs_value(option):
        parts.append("-r" if option.path_kind == "file" and not option.words else "-x")
    if option.words:
        parts.append(f"-a {_fish_quoted(' '.join(option.words))}")
    elif option.path_kind == "folder":
        parts.append("-a '(__fish_complete_directories)'")
    return " ".join([*parts, "-d", _fish_quoted(_brief(option.help))])


_BASH = r"""# Completes voirkit's command line in bash. Printed by "voirkit completion bash".
_voirkit() {
    local IFS=$'\n' current=$2 command= option= words= i=1
    COMPREPLY=()
    if ((COMP_CWORD > 1)); then
        case ${COMP_WORDS[1]} in
            @COMMANDS@) command=${COMP_WORDS[1]} i=2 ;;
        esac
    fi
    # bash makes three words of --option=value.
    while ((i < COMP_CWORD)); do
        if [[ ${COMP_WORDS[i + 1]} == "=" ]]; then
            if ((i + 2 >= COMP_CWORD)); then
                option=${COMP_WORDS[i]}
                break
            fi
            ((i += 3))
            continue
        fi
        case "$command ${COMP_WORDS[i]}" in
            @NEEDING@)
                if ((i + 1 == COMP_CWORD)); then
                    option=${COMP_WORDS[i]}
                    break
                fi
                ((i += 2))
                continue
                ;;
        esac
        # What stands behind SCRIPT, or behind -m, is the script's: files are offered.
        case "$command|${COMP_WORDS[i]}" in
            "|--" | "|-m" | "|"[!-]* | "|") return ;;
        esac
        ((i += 1))
    done
    if [[ -n $option ]]; then
        [[ $current == "=" ]] && current=
        case "$command $option" in
@VALUES@
                @FOLDERS@)
                COMPREPLY=($(compgen -d -- "$current"))
                return
                ;;
                @FILES@) return ;;
        esac
        compopt +o default +o bashdefault
    elif [[ $current == -* ]]; then
        case $command in
@OPTIONS@
        esac
    elif ((COMP_CWORD == 1)); then
        words=@WORDS@
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    if ((COMP_CWORD == 1)) && [[ $current != -* ]]; then
        COMPREPLY+=($(compgen -f -- "$current"))
    fi
}
complete -o bashdefault -o default -o filenames -F _voirkit voirkit
"""

_ZSH = r"""#compdef voirkit
# Completes voirkit's command line in zsh. Printed by "voirkit completion zsh".
_voirkit() {
  local curcontext="$curcontext" state state_descr line
  local -A opt_args
  local -a commands
  commands=(
@COMMANDS@
  )
  if (( CURRENT > 2 )) && [[ -n ${(M)commands:#${words[2]}:*} ]]; then
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in
@CASES@
    esac
    return
  fi
  # What stands behind SCRIPT, or behind -m, is the script's.
  _arguments -C -S -A '-*' : \
    @OPTIONS@ \
    '-m[run a module]:*::argument:_files' \
    '1: :->script' \
    '*::argument:_files' && return
  if [[ $state == script ]]; then
    (( CURRENT == 2 )) && _describe command commands
    _files
  fi
}
if [[ $funcstack[1] == _voirkit ]]; then
  _voirkit "$@"
else
  compdef _voirkit voirkit
fi
"""

_FISH = r"""# Completes voirkit's command line in fish. Printed by "voirkit completion fish".
function __voirkit_begins
    test (count (commandline -opc)) -eq 1
end

# Whether the words so far are those of a command; of "run": whether SCRIPT is still to come.
function __voirkit_reads --argument-names command
    set -l words (commandline -opc)
    set -e words[1]
    if test $command != run
        test "$words[1]" = $command
        return
    end
    contains -- "$words[1]" @COMMANDS@; and return 1
    set -l value 0
    for word in $words
        if test $value = 1
            set value 0
            continue
        end
        switch $word
            case @NEEDING@
                set value 1
            case -- -m
                return 1
            case '-*'
            case '*'
                return 1
        end
    end
    return 0
end

@ROWS@
complete -c voirkit -n '__voirkit_reads run' -s m -d 'run a module'
"""
