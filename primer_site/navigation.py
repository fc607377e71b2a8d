"""Where one can go in the console, and what one can make there: the navigation, the New menu and the palette say the same."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest

from accounts.models import Role


@dataclass(frozen=True, slots=True)
class Entry:
    label: str
    url: str
    icon: str
    key: str = ""  # behind g, on the keyboard


NAV: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("", (Entry("Overview", "/", "home", "o"),)),
    ("Workspaces", (
        Entry("Workspaces", "/workspaces/", "cube", "w"), Entry("Templates", "/workspaces/templates/", "square-3-stack-3d", "t"),
        Entry("Providers", "/workspaces/providers/", "server-stack", "p"), Entry("Sessions", "/sessions/", "chat-bubble-left-right", "s"))),
    ("Compute", (Entry("Agents", "/compute/agents/", "command-line", "a"), Entry("LLM providers", "/compute/llm-providers/", "cpu-chip", "l"))),
    ("Files", (Entry("Files", "/files/", "folder", "f"),)),
)  # fmt: skip
ADMIN_NAV = ("Admin", (
    Entry("Users", "/admin/users/", "users"), Entry("Tokens", "/admin/tokens/", "key"),
    Entry("Audit log", "/admin/audit/", "clipboard-document-list"), Entry("System", "/admin/system/", "wrench-screwdriver")))  # fmt: skip
NEW = (
    ("New session", "/sessions/new/", Role.MEMBER), ("New workspace", "/workspaces/new/", Role.MEMBER),
    ("New agent", "/compute/agents/new/", Role.MEMBER), ("New template", "/workspaces/templates/new/", Role.ADMIN),
    ("New provider", "/workspaces/providers/new/", Role.ADMIN), ("New LLM provider", "/compute/llm-providers/new/", Role.ADMIN),
)  # fmt: skip
ALLOWED = {Role.ADMIN: (Role.MEMBER, Role.ADMIN), Role.MEMBER: (Role.MEMBER,)}


def role_of(request: HttpRequest) -> str:
    """The caller's role, "" for nobody."""
    return str(getattr(getattr(request, "user", None), "role", ""))


def sections(request: HttpRequest) -> list[tuple[str, tuple[Entry, ...]]]:
    """Every section that the caller's role has, each with its pages."""
    return [*NAV, *([ADMIN_NAV] if role_of(request) == Role.ADMIN else [])]


def makes(request: HttpRequest) -> list[tuple[str, str]]:
    """Label and URL of each form that the caller's role may fill in."""
    allowed = ALLOWED.get(Role(role_of(request)), ()) if role_of(request) else ()
    return [(label, url) for label, url, need in NEW if need in allowed]
