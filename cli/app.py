"""What every command gets: the streams, the global flags, and, made on first use, settings and client."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cli.errors import NOT_THERE, ApiError, CliError, Done, Exit, UsageError
from cli.kinds import Kind, Ref
from cli.output import Console
from cli.text import nearest

if TYPE_CHECKING:  # each costs milliseconds that `--help` does not need
    from cli.client import Client
    from cli.config import ConfigFile, Settings

PLAIN = ("json", "yaml", "name", "wide", "table", "jsonpath=…")


@dataclass
class App:
    """`flags` are the global flags as given; `sleep` is injected so that tests do not wait."""

    console: Console
    flags: dict[str, Any] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _clients: list[Client] = field(default_factory=list)

    @cached_property
    def config(self) -> ConfigFile:
        from cli.config import ConfigFile

        config = ConfigFile.load(self.console.env)
        for warning in config.warnings:
            self.console.note(f"warning: {warning}")
        return config

    @cached_property
    def settings(self) -> Settings:
        from cli.config import resolve

        return resolve(self.config, self.flags, self.console.env)

    @cached_property
    def client(self) -> Client:
        return self.client_for(self.settings.server.text, self.settings.token.text, self.settings.token_note)

    def client_for(self, server: str, token: str, note: str = "") -> Client:
        """A client of any server, with this call's TLS, time and trace settings."""
        from cli.client import Client
        from cli.config import is_loopback
        from cli.patience import Patience, answered_lately

        settings, console = self.settings, self.console
        verify: bool | str = settings.ca_file.text or True
        if isinstance(verify, str) and not os.path.isfile(verify):
            raise UsageError(f"{verify}: no such CA file")
        if self.flags.get("insecure_skip_tls_verify"):
            console.note("warning: TLS certificates are not checked; whoever answers gets the token")
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
            verify = False
        if self.flags.get("token") and console.err_tty:
            console.note("warning: --token shows in the process list; prefer PRIMECTL_TOKEN")
        if server.startswith("http://") and not is_loopback(server):
            console.note(f"warning: {server} is not encrypted; the token can be read on the way")
        client = Client(
            server,
            token,
            note,
            verify=verify,
            timeout_s=settings.timeout_s,
            verbose=int(self.flags.get("verbose") or 0),
            trace=console.note,
            patience=Patience(self.sleep, self.clock, console.note, reached=answered_lately(console.env, server)),
        )
        self._clients.append(client)
        return client

    def afterwards(self) -> None:
        """Once a day, and for people only: whether this program and the server belong together."""
        if "client" in self.__dict__ and self.console.err_tty and not self.quiet and self.client.token:
            from cli.versions import known_version

            known_version(self)

    def close(self) -> None:
        """Closes the connections of this call, and notes which servers were there."""
        for client in self._clients:
            client.close()
            if client.patience.heard:
                from cli.patience import note_answer

                note_answer(self.console.env, client.server)

    @property
    def yes(self) -> bool:
        return bool(self.flags.get("yes"))

    @property
    def quiet(self) -> bool:
        return bool(self.flags.get("quiet"))

    @property
    def wants_json(self) -> bool:
        """Whether failures are JSON: judged from what was typed, also when the configuration is the failure."""
        return (self.flags.get("output") or self.console.env.get("PRIMECTL_OUTPUT")) in ("json", "jsonl")

    def format(self, allowed: Sequence[str], default: str) -> str:
        """The output format. A default from file or environment that this command lacks is ignored, a flag is not."""
        value = self.settings.output
        if not value.text or value.text == default:
            return default
        if value.text.startswith("jsonpath=") and PLAIN[-1] in allowed:
            from cli import jsonpath

            jsonpath.parse(value.text.removeprefix(jsonpath.PREFIX))  # refused before anything is sent
            return value.text
        if value.text not in allowed:
            if value.source == "--output":
                close = nearest(value.text, allowed)
                hint = f"did you mean {close}?" if close else ""
                raise UsageError(f"-o {value.text}: formats here are {', '.join(allowed)}", hint=hint)
            return default
        return value.text

    def fail_all(self, failures: Sequence[CliError]) -> None:
        """Shows every failure in order and leaves with the exit code of the first; nothing without one."""
        for failure in failures:
            self.console.error(failure, as_json=self.wants_json)
        if failures:
            raise Done(failures[0].exit)

    def confirm(self, question: str) -> bool:
        """Asks on a terminal, default No. Callers decide what a missing terminal means."""
        self.console.note(f"{question} [y/N] ", end="")
        answer = self.console.inp.readline(64).decode("utf-8", "replace").strip().lower()
        return answer in ("y", "yes")

    # Objects by reference

    def path(self, ref: Ref, *rest: str) -> str:
        from cli.wire import segment

        return "/".join(["/v1", ref.kind.plural, segment(ref.id), *rest])

    def full(self, ref: Ref) -> Ref:
        """The reference with a cut id completed; more than one match is an error, never a guess."""
        if not ref.kind.prefix or len(ref.id) == len(ref.kind.prefix) + 16:
            return ref
        # The server looks into more than ids, so that its answer is narrowed here once more.
        ids = [str(item.get("id")) for item in self.client.pages(f"/v1/{ref.kind.plural}", q=ref.id)]
        found = [name for name in ids if name.startswith(ref.id)]
        if not found:
            raise CliError(f"{ref.kind.name} {ref.id} not found", exit=Exit.NOT_FOUND, code="not_found")
        if len(found) > 1:
            raise UsageError(f'"{ref.id}" is ambiguous: {", ".join(found)}')
        return Ref(ref.kind, found[0])

    def fetch(self, ref: Ref) -> dict[str, Any]:
        """The object; raises the not-found error of the contract with the nearest id."""
        try:
            return self.client.get(self.path(ref)).object
        except ApiError as exc:
            raise self.explained(exc, ref) from exc

    def explained(self, exc: ApiError, ref: Ref) -> CliError:
        """A 404 about `ref` as a sentence with the nearest id; the server's `ID` in a command line becomes ours."""
        if exc.code in NOT_THERE:
            exc.hint = re.sub(r"\bID\b", ref.id, exc.hint)
        if exc.status != 404:
            return exc
        return self.not_found(ref, request_id=exc.request_id)

    def not_found(self, ref: Ref, request_id: str = "") -> CliError:
        close = nearest(ref.id, self.ids(ref.kind)) if not ref.kind.prefix else ""
        return CliError(
            f"{ref.kind.name} {ref.id} not found",
            exit=Exit.NOT_FOUND,
            hint=f"did you mean {close}?" if close else "",
            code="not_found",
            request_id=request_id if not close else "",
        )

    def ids(self, kind: Kind) -> list[str]:
        """Ids of a kind for hints; empty when the list cannot be had, since a hint must not hide the failure."""
        try:
            return [str(item.get("id")) for item in self.client.pages(f"/v1/{kind.plural}", limit=500)]
        except CliError:
            return []
