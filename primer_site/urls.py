"""Every route: the API of each app below /v1/, its schema, and health."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from primer_site import console, health, scrape
from primer_site.capabilities import CapabilitiesView

api: list[URLPattern | URLResolver] = [
    path("", include("accounts.urls")),
    path("", include("workspaces.urls")),
    path("", include("agents.urls")),
    path("", include("sessions_app.urls")),
    path("capabilities", CapabilitiesView.as_view()),
    path("schema/", SpectacularAPIView.as_view(), name="schema"),
    # The split view has no inline script, which the content policy refuses.
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="schema"), name="docs"),
]
urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", scrape.MetricsView.as_view(), name="metrics"),
    path("v1/", include(api)),
    *console.urls,
]

handler400 = "primer_site.console.bad_request"
handler403 = "primer_site.console.forbidden"
handler404 = "primer_site.console.not_found"
handler500 = "primer_site.console.error"
