from django.apps import AppConfig


class PrimerSiteConfig(AppConfig):
    name = "primer_site"

    def ready(self) -> None:
        from django.conf import settings

        from primer_site import checks, logs  # noqa: F401 - registers the checks

        logs.remember_secret(settings.SECRET_KEY, settings.PRIMER_METRICS_TOKEN, *settings.PRIMER_ENCRYPTION_KEYS)
