from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "accounts"

    def ready(self) -> None:
        import accounts.schema  # noqa: F401 - drf-spectacular finds its extensions once they are imported
