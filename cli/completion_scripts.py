"""A command tree as a completion script of bash, zsh or fish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .completion import Command, Option, Tree, Value

_MADE_BY = "# Made by `python -m ntool.completion --write completions`; do not edit."

_BASH_HEAD = """\
# bash completion for ntool
{made_by}

# Sets kind and choices to what an option (its name) or argument (its number) of a command takes.
# Fails if it takes nothing.
_ntool_takes() {{
    choices=''
    case "$1 $2" in
"""

_BASH_TAIL = """\
        *) return 1 ;;
    esac
}

_ntool() {
    local line=${COMP_LINE:0:COMP_POINT} space breaks='' i word files=''
    local command='' position=1 expects='' ended='' kind='' choices='' current value prefix=''
    local IFS=$' \\t\\n'
    local -a words=()
    COMPREPLY=()

    # bash cuts words at : and = too; what has no space between is one word again here
    for ((i = 0; i <= COMP_CWORD; i++)); do
        space=${line%%[![:space:]]*}
        line=${line#"$space"}
        word=$line
        if ((i < COMP_CWORD)); then
            word=${COMP_WORDS[i]}
        fi
        line=${line#"$word"}
        if [[ $i == 0 || -n $space ]]; then
            words+=("$word")
        else
            words[${#words[@]} - 1]+=$word
        fi
    done
    current=${words[${#words[@]} - 1]}

    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]}
        if [[ -n $expects ]]; then
            expects=''
        elif [[ -z $ended && $word == -- ]]; then
            ended=1
        elif [[ -z $ended && $word == -?* ]]; then
            if [[ $word != *=* ]] && _ntool_takes "$command" "$word"; then
                expects=$word
            fi
        elif [[ -z $command ]]; then
            command=$word
        elif _ntool_group "$command"; then
            command+=" $word"
        else
            ((position++))
        fi
    done

    kind=words
    value=$current
    if [[ -n $expects ]]; then
        _ntool_takes "$command" "$expects"
    elif [[ -z $ended && $current == --*=* ]]; then
        prefix=${current%%=*}=
        value=${current#*=}
        _ntool_takes "$command" "${current%%=*}" || return 0
    elif [[ -z $ended && $current == -* ]]; then
        _ntool_options "$command"
    elif [[ -z $command ]]; then
        choices=$_ntool_commands
    elif ! _ntool_group "$command"; then
        _ntool_takes "$command" "$position" || return 0
    fi

    if [[ $kind == source || $kind == package ]]; then
        choices=$_ntool_demos
    fi
    for word in $choices; do
        if [[ $word == "$value"* ]]; then
            COMPREPLY+=("$prefix$word")
        fi
    done
    case $kind in
        file | source) files=-f ;;
        folder | package) files=-d ;;
    esac
    if [[ -n $files ]]; then
        while IFS= read -r word; do
            COMPREPLY+=("$prefix$word")
            compopt -o filenames 2>/dev/null
        done < <(compgen "$files" -- "$value")
        if ((${#COMPREPLY[@]} == 0)); then
            compopt -o default 2>/dev/null # readline knows about quotes and ~
        fi
    fi

    # bash replaces only what follows the last : or =
    if [[ $COMP_WORDBREAKS == *:* ]]; then
        breaks+=:
    fi
    if [[ $COMP_WORDBREAKS == *=* ]]; then
        breaks+==
    fi
    if [[ -n $breaks && $current != *[\\'\\"]* ]]; then
        prefix=${current%"${current##*[$breaks]}"}
        for i in "${!COMPREPLY[@]}"; do
            COMPREPLY[i]=${COMPREPLY[i]#"$prefix"}
        done
    fi
}

complete -F _ntool ntool
"""


def bash(tree: Tree) -> str:
    """The script for bash."""
    out = [_BASH_HEAD.format(made_by=_MADE_BY)]
    for command in tree.every:
        for option in command.options:
            if option.value is not None:
                patterns = " | ".join(f"'{command.name} {n}'" for n in option.names)
                out.append(f"        {patterns}) {_bash_value(option.value)} ;;\n")
        for number, argument in enumerate(command.arguments, 1):
            pattern = (
                f"'{command.name} '[0-9]*" if argument.variadic else f"'{command.name} {number}'"
            )
            out.append(f"        {pattern}) {_bash_value(argument.value)} ;;\n")
    tail = _BASH_TAIL.split("_ntool() {", 1)
    out.append(tail[0])
    out.append(f"_ntool_commands={_sh(' '.join(c.name for c in tree.commands))}\n")
    out.append(f"_ntool_demos={_sh(' '.join(tree.demos))}\n\n")
    out.append("# Sets choices to the commands of a group; fails for other commands.\n")
    out.append("_ntool_group() {\n    case $1 in\n")
    for command in tree.commands:
        if command.commands:
            words = " ".join(c.word for c in command.commands)
            out.append(f"        {command.name}) choices={_sh(words)} ;;\n")
    out.append("        *) return 1 ;;\n    esac\n}\n\n")
    out.append("_ntool_options() {\n    case $1 in\n")
    for name, options in [("", tree.options), *((c.name, c.options) for c in tree.every)]:
        names = " ".join(n for o in options for n in o.names)
        shown = _sh(name) if " " in name or not name else name
        out.append(f"        {shown}) choices={_sh(names)} ;;\n")
    out.append("        *) choices='' ;;\n    esac\n}\n\n_ntool() {" + tail[1])
    return "".join(out)


def _bash_value(value: Value) -> str:
    choices = f" choices={_sh(' '.join(value.words))}" if value.words else ""
    return f"kind={value.kind}{choices}"


def _sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def zsh(tree: Tree) -> str:
    """The script for zsh, to be autoloaded as `_ntool` or sourced."""
    out = [f"#compdef ntool\n# zsh completion for ntool\n{_MADE_BY}\n\n"]
    demos = " ".join(d.replace(":", "\\:") for d in tree.demos)
    for name, files in [("source", "_files"), ("package", "_files -/")]:
        out.append(f"_ntool_{name}() {{\n  _alternative {_sh('files:file:' + files)} ")
        out.append(f"{_sh(f'demo:demonstration checkpoint:({demos})')}\n}}\n\n")
    groups = [c for c in tree.commands if c.commands]
    for name, options, commands in [
        *((f"_ntool_{c.name}", c.options, c.commands) for c in groups),
        ("_ntool", tree.options, tree.commands),
    ]:
        out += _zsh_level(name, options, commands)
    out.append("# autoloaded: this file is the function's body; sourced: register it\n")
    out.append('if [[ ${funcstack[1]-} == _ntool ]]; then\n  _ntool "$@"\nelse\n')
    out.append("  compdef _ntool ntool\nfi\n")
    return "".join(out)


def _zsh_level(name: str, options: Iterable[Option], commands: Iterable[Command]) -> Iterable[str]:
    """The functions that complete a command and what follows it: `NAME` and `NAME_commands`."""
    yield f"{name}_commands() {{\n  local -a commands=(\n"
    for command in commands:
        yield f"    {_sh(command.word + ':' + command.help.replace(':', chr(92) + ':'))}\n"
    yield "  )\n  _describe -t commands command commands\n}\n\n"
    yield f'{name}() {{\n  local curcontext="$curcontext" state line\n  typeset -A opt_args\n'
    specs = [*map(_zsh_option, options), f"'1:command:{name}_commands'", "'*::argument:->rest'"]
    yield _zsh_arguments("  ", "-C ", specs)
    yield "  [[ $state == rest ]] || return\n  case $words[1] in\n"
    for command in commands:
        if command.commands:
            yield f"    {command.word}) _ntool_{command.name} ;;\n"
            continue
        specs = [_zsh_option(o) for o in command.options]
        for number, argument in enumerate(command.arguments, 1):
            place = "*" if argument.variadic else str(number)
            specs.append(
                _sh(f"{place}:{_zsh_text(argument.value.label)}:{_zsh_action(argument.value)}")
            )
        yield f"    {command.word})\n{_zsh_arguments('      ', '', specs)}      ;;\n"
    yield "  esac\n}\n\n"


def _zsh_arguments(indent: str, flags: str, specs: Iterable[str]) -> str:
    lines = [f"{indent}_arguments {flags}-s -S", *(f"{indent}  {s}" for s in specs)]
    return " \\\n".join(lines) + "\n"


def _zsh_option(option: Option) -> str:
    """`'(-o --output)'{--output=,-o+}'[help]:FILE:_files'`, or its form for one name, or a flag."""
    takes = option.value is not None
    names = [n + (("=" if n.startswith("--") else "+") if takes else "") for n in option.names]
    if "--help" in option.names or "--version" in option.names:
        before = "(- *)"
    elif option.repeats:
        before = "*"
    else:
        before = f"({' '.join(option.names)})"
    after = f"[{_zsh_text(option.help)}]"
    if option.value is not None:
        after += f":{_zsh_text(option.value.label)}:{_zsh_action(option.value)}"
    if len(names) == 1:
        return _sh(before + names[0] + after)
    return f"{_sh(before)}{{{','.join(names)}}}{_sh(after)}"


def _zsh_action(value: Value) -> str:
    if value.kind == "words":
        return "(" + " ".join(w.replace(":", "\\:") for w in value.words) + ")"
    return {
        "file": "_files",
        "folder": "_files -/",
        "source": "_ntool_source",
        "package": "_ntool_package",
    }.get(value.kind, " ")


def _zsh_text(text: str) -> str:
    for c in "\\[]:":
        text = text.replace(c, "\\" + c)
    return text


_FISH_HEAD = """\
# fish completion for ntool
{made_by}

# Succeeds if the line has this command, and is at its argument number FIRST..LAST, if given.
function __ntool_at --argument-names wanted first last
    set -l words (commandline -opc)
    set -e words[1]
    set -l command ''
    set -l position 1
    set -l expects no
    for word in $words
        if test $expects = yes
            set expects no
            continue
        end
        switch $word
            case '--*=*'
            case '-*'
                if contains -- "$command $word" $__ntool_valued
                    set expects yes
                end
            case '*'
                if test -z "$command"
                    set command $word
                else if contains -- "$command" $__ntool_groups
                    set command "$command $word"
                else
                    set position (math $position + 1)
                end
        end
    end
    test "$command" = "$wanted"; or return 1
    test -z "$first"; or test $position -ge $first -a $position -le $last
end

set -g __ntool_valued \\
"""


def fish(tree: Tree) -> str:
    """The script for fish."""
    valued = [  # a line for each command
        " ".join(_fish(f"{c.name} {n}") for o in c.options if o.value is not None for n in o.names)
        for c in tree.every
    ]
    groups = [_fish(c.name) for c in tree.commands if c.commands]
    out = [_FISH_HEAD.format(made_by=_MADE_BY)]
    out.append(" \\\n".join(f"    {v}" for v in valued) + "\n")
    out.append(f"set -g __ntool_groups {' '.join(groups)}\n\ncomplete -c ntool -f\n")
    at_start = _fish("__ntool_at ''")
    for option in tree.options:
        out.append(f"complete -c ntool -n {at_start} {_fish_option(option, tree)}\n")
    for command in tree.commands:
        out.append(f"complete -c ntool -n {at_start} -a {command.name} -d {_fish(command.help)}\n")
    for command in tree.every:
        out += _fish_command(command, tree)
    return "".join(out)


def _fish_command(command: Command, tree: Tree) -> Iterable[str]:
    yield f"\n# {command.name}\n"
    name = _fish(command.name) if " " in command.name else command.name
    where = _fish(f"__ntool_at {name}")
    for option in command.options:
        yield f"complete -c ntool -n {where} {_fish_option(option, tree)}\n"
    for inner in command.commands:
        yield f"complete -c ntool -n {where} -a {inner.word} -d {_fish(inner.help)}\n"
    for number, argument in enumerate(command.arguments, 1):
        last = 9999 if argument.variadic else number
        where = _fish(f"__ntool_at {name} {number} {last}")
        takes = _fish_value(argument.value, tree).replace("-x ", "", 1)
        if takes not in ("", "-x"):
            yield f"complete -c ntool -n {where} {takes}\n"


def _fish_option(option: Option, tree: Tree) -> str:
    parts = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
    if option.value is not None:
        parts.append(_fish_value(option.value, tree))
    return " ".join([*parts, f"-d {_fish(option.help)}"])


def _fish_value(value: Value, tree: Tree) -> str:
    demos = _fish(" ".join(tree.demos))
    if value.kind == "words":
        return f"-x -a {_fish(' '.join(value.words))}"
    return {
        "file": "-r -F",
        "folder": "-x -a '(__fish_complete_directories)'",
        "source": f"-r -F -a {demos}",
        "package": f"-r -F -a {demos}",
    }.get(value.kind, "-x")


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
