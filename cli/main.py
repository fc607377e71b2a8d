"""`primectl`: the command line of a Primer server. Nothing heavy is imported before the command that needs it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from cli.app import App
from cli.command import Group
from cli.errors import CliError, ClosedPipe, Done, Exit, Terminated, UsageError
from cli.output import Console

COMPLETE = "_PRIMECTL_COMPLETE"
_C = "cli.commands"
COMMANDS: dict[str, tuple[str, str]] = {  # name: (where, the line in the help); imported on use
    "run": (f"{_C}.run:run", "Run a file or a snippet in a sandbox that is removed afterwards."),
    "get": (f"{_C}.get:get", "List objects, or show some of them."),
    "describe": (f"{_C}.describe:describe", "Show one object with what belongs to it and what to do next."),
    "create": (f"{_C}.create:create", "Create objects from files, or one from --set."),
    "apply": (f"{_C}.apply:apply", "Make objects be as the files say."),
    "diff": (f"{_C}.diff:diff", "Show what apply would change."),
    "edit": (f"{_C}.edit:edit", "Change an object in an editor."),
    "delete": (f"{_C}.delete:delete", "Delete objects and wait until they are gone."),
    "wait": (f"{_C}.wait:wait", "Wait until objects are in a state."),
    "session": (f"{_C}.session:session", "Run agents in workspaces, follow and cancel them."),
    "workspace": (f"{_C}.workspace:workspace", "Execute, move files, start, stop and verify workspaces."),
    "cp": (f"{_C}.cp:cp", "Copy files and directories to and from a workspace."),
    "provider": (f"{_C}.checks:provider", "Check workspace providers."),
    "template": (f"{_C}.checks:template", "Check workspace templates."),
    "llm-provider": (f"{_C}.checks:llm_provider", "Test LLM providers."),
    "mcp": (f"{_C}.mcp:mcp", "Give MCP clients a sandbox of this server."),
    "explain": (f"{_C}.explain:explain", "Explain the fields of a kind."),
    "api-resources": (f"{_C}.explain:api_resources", "List the kinds and what can be done with them."),
    "login": (f"{_C}.login:login", "Sign in to a server and remember it as a context."),
    "logout": (f"{_C}.login:logout", "End this context's token and forget it."),
    "whoami": (f"{_C}.login:whoami", "Show who the server takes you for."),
    "context": (f"{_C}.context:context", "List, choose, rename and delete contexts."),
    "config": (f"{_C}.context:config", "Show the settings in force and where they come from."),
    "token": (f"{_C}.token:token", "Create, list and revoke tokens."),
    "audit": (f"{_C}.audit:audit", "Show who changed what (admins)."),
    "api": (f"{_C}.rawcall:api", "Call any route of the API."),
    "doctor": (f"{_C}.doctor:doctor", "Check what primectl needs: configuration, server, token, sandboxes."),
    "completion": (f"{_C}.misc:completion", "Print or install shell completion."),
    "version": (f"{_C}.misc:version", "Show the versions of client and server."),
    "help": (f"{_C}.misc:help_", "Show the help of a command, or the exit codes."),
}

root = Group(
    "primectl",
    lazy=COMMANDS,
    aliases={"list": "get", "llm_provider": "llm-provider"},
    is_root=True,
    help="Runs code that nobody trusts in a sandbox, and shows that it stayed there.",
    examples=(
        "primectl login http://127.0.0.1:8000",
        "primectl run -c 'print(6*7)'",
        "primectl create workspace --set template_id=default",
        "primectl session run <workspace-id> --agent default-runner -i 'Run this code: print(6 * 7)'",
        "primectl help exit-codes      (and primectl --help for this page)",
    ),
)


def run(argv: Sequence[str], console: Console, **app_settings: Any) -> int:
    """One call of the program on the given streams; returns its exit code and never raises an Exception."""
    app = App(console, **app_settings)
    try:
        if instruction := console.env.get(COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(root, {}, "primectl", COMPLETE, instruction)
        # Not root.main: it writes to stderr at Ctrl-C and ends the process on a closed pipe.
        with root.make_context("primectl", list(argv), obj=app) as context:
            root.invoke(context)
            app.afterwards()
        return int(Exit.OK)
    except Done as done:
        return done.code
    except click.exceptions.Exit as left:
        return left.exit_code
    except ClosedPipe:
        return int(Exit.CLOSED_PIPE)
    except (KeyboardInterrupt, click.Abort):
        return int(Exit.CTRL_C)
    except Terminated:
        return int(Exit.TERMINATED)
    except CliError as failure:
        return _failed(app, failure)
    except click.ClickException as exc:
        return _failed(app, _usage(exc))
    except Exception as exc:
        return _failed(app, _bug(exc))
    finally:
        app.close()


def _failed(app: App, failure: CliError) -> int:
    if app.console.env.get("PRIMECTL_DEBUG"):
        import traceback

        # Only our frames and the message: no local values, so no token.
        app.console.block("".join(traceback.format_exception(failure)))
    app.console.error(failure, as_json=app.wants_json)
    return int(failure.exit)


def _usage(exc: click.ClickException) -> UsageError:
    message = exc.format_message()
    hint = ""
    if isinstance(exc, click.NoSuchOption):
        message = f"no such option: {exc.option_name}"
        if exc.possibilities:
            hint = f"did you mean {exc.possibilities[0]}?"
    context = getattr(exc, "ctx", None)
    if not hint and context is not None:
        hint = f"see: {context.command_path} --help"
    message = message.rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _bug(exc: Exception) -> CliError:
    failure = CliError(
        f"this is an error of primectl's own: {type(exc).__name__}: {str(exc)[:200]}",
        hint="PRIMECTL_DEBUG=1 shows where; please report it",
        code="bug",
    )
    failure.__cause__ = exc
    return failure


def _on_sigterm(number: int, frame: Any) -> None:
    raise Terminated


def main() -> None:
    """Console script `primectl`."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    console = Console.of_process()
    try:
        code = run(sys.argv[1:], console)
    except Terminated:  # arrived while an error was being written
        code = int(Exit.TERMINATED)
    _silence(console)
    sys.exit(code)


def _silence(console: Console) -> None:
    """A closed pipe must not become a traceback when the interpreter flushes at its end."""
    for stream, number in ((console.out, 1), (console.err, 2)):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


if __name__ == "__main__":
    main()
