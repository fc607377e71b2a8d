"""click, as this program uses it: global flags before and after the verb, examples in every help, lazy commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

import click

from cli.text import nearest

GLOBAL_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--context",), {"metavar": "NAME", "help": "The context to use. [env: PRIMECTL_CONTEXT]"}),
    (("--server",), {"metavar": "URL", "help": "The server to speak to. [env: PRIMECTL_SERVER]"}),
    (("--token",), {"metavar": "T", "help": "The token; others can see it in the process list. [env: PRIMECTL_TOKEN]"}),
    (("--ca-file",), {"metavar": "PATH", "help": "The CA that signed the server. [env: PRIMECTL_CA_FILE]"}),
    (("--insecure-skip-tls-verify",), {"is_flag": True, "default": None, "help": "Do not check the certificate."}),
    (
        ("-o", "--output"),
        {"metavar": "FORMAT", "help": "table, wide, json, yaml, name, jsonpath=… [env: PRIMECTL_OUTPUT]"},
    ),
    (("-r", "--raw-output"), {"is_flag": True, "default": None, "help": "With -o yaml: the bare object."}),
    (("-q", "--quiet"), {"is_flag": True, "default": None, "help": "Ids only; silence on other success."}),
    (("-v", "--verbose"), {"count": True, "help": "Show each call; -vv: with headers and bodies."}),
    (("--color",), {"type": click.Choice(["auto", "always", "never"]), "help": "When to use colour. [env: NO_COLOR]"}),
    (("--utc",), {"is_flag": True, "default": None, "help": "Times in UTC instead of local time."}),
    (("--request-timeout",), {"metavar": "30s", "help": "Limit of one HTTP call. [env: PRIMECTL_REQUEST_TIMEOUT]"}),
    (("-y", "--yes"), {"is_flag": True, "default": None, "help": "Answer every confirmation with yes."}),
)
GIVEN = "primectl.given"  # in a context: the words of the command line after the command's name
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keeps a flag that was given, wherever on the line; the last one given wins, `-v` adds up."""
    if not value or ctx.obj is None:
        return
    flags = ctx.obj.flags
    name = str(param.name)
    flags[name] = flags.get(name, 0) + value if name == "verbose" else value
    ctx.obj.console.quiet = bool(flags.get("quiet"))
    ctx.obj.console.colour_wish = flags.get("color") or "auto"


def global_options(*, hidden: bool) -> list[click.Parameter]:
    return [
        click.Option(list(names), expose_value=False, callback=_store, hidden=hidden, is_eager=True, **settings)
        for names, settings in GLOBAL_FLAGS
    ]


class _Helpful(click.Command):
    """Help is written like every other result: to our stdout, where a closed pipe is known."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.obj.console.help(ctx.get_help() + "\n")
        ctx.exit()


class Command(_Helpful):
    """A command with examples; it takes the global flags too, without listing them again."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", CONTEXT_SETTINGS)
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.params = [*self.params, *global_options(hidden=True)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # click drops `--`, and with it what stood after it.
        ctx.meta[GIVEN] = tuple(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.examples, formatter)


class Group(_Helpful, click.Group):
    """A noun with actions, or the program itself; commands are `module:attribute` and imported when they are used."""

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        aliases: Mapping[str, str] | None = None,
        examples: Sequence[str] = (),
        is_root: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("context_settings", CONTEXT_SETTINGS)
        kwargs["invoke_without_command"] = True
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})
        self.aliases = dict(aliases or {})
        self.examples = tuple(examples)
        self.is_root = is_root
        self.params = [*self.params, *global_options(hidden=not is_root)]
        if self.callback is None:
            self.callback = self._alone

    def _alone(self) -> None:
        """Without an action: the help, and that is no error."""
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            formatter = ctx.make_formatter()
            self.format_usage(ctx, formatter)
            self.format_help_text(ctx, formatter)
            self.format_commands(ctx, formatter)
            self.format_epilog(ctx, formatter)
            ctx.obj.console.help(formatter.getvalue())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self.aliases.get(cmd_name, cmd_name)
        if name in self.lazy:
            module, _, attribute = self.lazy[name][0].partition(":")
            command = getattr(import_module(module), attribute)
            return cast(click.Command, command)
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from cli.errors import UsageError

            close = nearest(args[0], self.list_commands(ctx))
            hint = f"did you mean {ctx.command_path} {close}?" if close else f"see: {ctx.command_path} --help"
            raise UsageError(f'{ctx.command_path} has no command "{args[0]}"', hint=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in self.lazy.items()]
        rows += [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(self.examples, formatter)


def write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for line in examples:
            formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
    if not any("primectl --help" in line for line in examples):
        formatter.write("\nGlobal flags (-o, -q, -v, --context, --server, …): primectl --help\n")


def command(name: str, *examples: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """`@command("get", "primectl get workspaces", …)`: the function's docstring is the help."""
    decorate = click.command(name, cls=Command, examples=examples, **settings)
    return decorate
