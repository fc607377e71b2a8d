"""`/metrics` for Prometheus: the counters of this process, and what the database says at the moment of the scrape."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.db.models import Count, Min
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from accounts.models import User
from accounts.permissions import require_admin
from primer_site import metrics, services
from primer_site.capabilities import server_version
from primer_site.errors import Unauthenticated
from sessions_app.models import AgentSession, Status
from workspaces.models import Exec, ExecState, Health, Phase, Workspace, WorkspaceProvider

SCRAPER = "metrics"


class DatabaseState(Collector):
    """Gauges from four queries, whatever the number of rows."""

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("primer_build_info", "The version of this server.", labels=["version"])
        info.add_metric([server_version()], 1)
        yield info
        yield _counts(
            "primer_workspaces", "Live workspaces.", "phase", Phase.values, _by(Workspace.objects.live(), "phase")
        )
        yield _counts(
            "primer_providers", "Engines by their last check.", "health", Health.values,
            _by(WorkspaceProvider.objects.live(), "health"),
        )  # fmt: skip
        running = Exec.objects.filter(state=ExecState.RUNNING).count()
        yield GaugeMetricFamily("primer_execs_running", "Commands that run now.", value=running)
        yield from _sessions()
        up = GaugeMetricFamily("primer_service_up", "Background services of this process.", labels=["service"])
        for name, runs in services.states().items():
            up.add_metric([name], int(runs))
        yield up


def _sessions() -> Iterator[Metric]:
    rows = AgentSession.objects.exclude(status=Status.ENDED).order_by().values("status")
    found = {row["status"]: row for row in rows.annotate(count=Count("pk"), oldest=Min("queued_at"))}
    counts = {status: row["count"] for status, row in found.items()}
    active = [Status.QUEUED.value, Status.RUNNING.value]
    yield _counts("primer_sessions", "Sessions that have not ended.", "status", active, counts)
    oldest = found.get(Status.QUEUED, {}).get("oldest")
    age = max(0.0, (timezone.now() - oldest).total_seconds()) if oldest else 0.0
    yield GaugeMetricFamily("primer_queue_age_seconds", "How long the oldest queued session has waited.", value=age)


def _by(rows: Any, column: str) -> dict[str, int]:
    return dict(rows.order_by().values_list(column).annotate(count=Count("pk")))


def _counts(name: str, text: str, label: str, values: list[str], found: dict[str, int]) -> Metric:
    """A gauge with every known value, 0 included: a series that comes and goes cannot be alarmed on."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for value in values:
        family.add_metric([value], found.get(value, 0))
    return family


class ScrapeToken(BaseAuthentication):
    """The token of PRIMER_METRICS_TOKEN, which opens nothing else."""

    def authenticate(self, request: Request) -> tuple[None, str] | None:
        scheme, _, given = get_authorization_header(request).partition(b" ")
        wanted: bytes = settings.PRIMER_METRICS_TOKEN.encode()
        if wanted and scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted):
            return None, SCRAPER
        return None

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class MayScrape(BasePermission):
    def has_permission(self, request: Request, view: APIView) -> bool:
        if request.auth == SCRAPER:
            return True
        if not isinstance(request.user, User):
            raise Unauthenticated
        if not request.user.is_admin:  # any scope of an admin's token will do: it only reads
            require_admin(request.user)
        return True


@extend_schema(exclude=True)
class MetricsView(APIView):
    """Counts only: nothing in the answer names a person, an object or an address."""

    authentication_classes: Any = [ScrapeToken, *api_settings.DEFAULT_AUTHENTICATION_CLASSES]
    permission_classes = [MayScrape]

    def get(self, request: Request) -> HttpResponse:
        state = CollectorRegistry(auto_describe=False)
        state.register(DatabaseState())
        text = generate_latest(metrics.REGISTRY) + generate_latest(state)
        return HttpResponse(text, content_type=CONTENT_TYPE_LATEST)
