"""Every route: /v1/ is the API; its errors are problem+json, also for what no route knows."""

from django.urls import include, path

urlpatterns = [
    path("v1/", include("accounts.urls")),
]

handler400 = "primer_site.problems.page_bad_request"
handler403 = "primer_site.problems.page_forbidden"
handler404 = "primer_site.problems.page_not_found"
handler500 = "primer_site.problems.page_error"
