"""Settings, all from `PRIMER_*` variables (the table of them is in `variables.py`) and the data directory."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from csp.constants import NONE, SELF

from primer_site.description import DESCRIPTION
from primer_site.home import home_dir, setting
from primer_site.variables import value

BASE_DIR = Path(__file__).resolve().parent.parent
PRIMER_HOME = home_dir()


def shipped(name: str) -> Path:
    """A directory that comes with Primer: beside the packages in a checkout, below `share` in an installed wheel."""
    beside = BASE_DIR / name
    return beside if beside.is_dir() else Path(sys.prefix) / "share" / "primer" / name


# Without a prepared home (a tool that only imports the settings) the keys are of this process alone; the system check
# primer.E001 refuses to serve like that.
PRIMER_PREPARED = bool(setting("SECRET_KEY", "secret-key") and setting("ENCRYPTION_KEYS", "encryption-keys"))
SECRET_KEY = setting("SECRET_KEY", "secret-key") or secrets.token_urlsafe(48)
PRIMER_ENCRYPTION_KEYS: list[str] = setting("ENCRYPTION_KEYS", "encryption-keys").split()
PRIMER_INSTANCE_ID: str = setting("INSTANCE_ID", "instance-id")

DEBUG = bool(value("PRIMER_DEBUG"))
ALLOWED_HOSTS: list[str] = value("PRIMER_ALLOWED_HOSTS")
CSRF_TRUSTED_ORIGINS: list[str] = value("PRIMER_TRUSTED_ORIGINS")

# The local provider isolates nothing, so it exists only where the operator says so.
PRIMER_ALLOW_LOCAL: bool = value("PRIMER_ALLOW_LOCAL")
# Where a provider's engine socket may lie; anything else could make the server open files by name.
PRIMER_SOCKET_DIRS: list[str] = [*value("PRIMER_SOCKET_DIRS"), str(PRIMER_HOME)]
# Model endpoints that may be at a private address, as host:port.
PRIMER_LLM_HOSTS: list[str] = value("PRIMER_LLM_HOSTS")
PRIMER_DRAIN_S: float = value("PRIMER_DRAIN_S")  # what a graceful stop grants to runs
PRIMER_TOKEN_TTL_S: int = value("PRIMER_TOKEN_TTL_S")  # of a token that login buys
PRIMER_MAX_BODY_BYTES: int = value("PRIMER_MAX_BODY_BYTES")  # of a JSON body
PRIMER_MAX_UPLOAD_BYTES: int = value("PRIMER_MAX_UPLOAD_BYTES")  # of any body
PRIMER_MAX_WORKSPACES: int = value("PRIMER_MAX_WORKSPACES")  # of one user, alive; 0 is no limit
PRIMER_MAX_SESSIONS: int = value("PRIMER_MAX_SESSIONS")  # of one user, queued or running; 0 is no limit
PRIMER_KEEP_DAYS: int = value("PRIMER_KEEP_DAYS")  # of ended sessions, output and audit entries; 0 is for ever
PRIMER_METRICS_TOKEN: str = value("PRIMER_METRICS_TOKEN")

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "knox",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "csp",
    "django_htmx",
    "django_ace",
    "heroicons",
    "primer_site",
    "accounts",
    "workspaces",
    "agents",
    "sessions_app",
]
MIDDLEWARE = [
    "primer_site.requests.RequestMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "primer_site.console.ConsoleMiddleware",
]
ROOT_URLCONF = "primer_site.urls"
ASGI_APPLICATION = "primer_site.asgi.application"
APPEND_SLASH = False
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [shipped("templates")],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.csrf",
                "primer_site.console.frame",
            ]
        },
    }
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": PRIMER_HOME / "primer.sqlite3",
        "OPTIONS": {
            # The default mode upgrades a read lock in the middle of a transaction, which fails at once under
            # concurrent writers; IMMEDIATE waits its turn instead.
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA cache_size=-2000;",
        },
        "CONN_MAX_AGE": None,  # connections of views go with their threads, see primer_site.threads
        "TEST": {"NAME": PRIMER_HOME / "test.sqlite3"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "/login/"

CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False

STATIC_URL = "/static/"
STATIC_ROOT = PRIMER_HOME / "static"
STATICFILES_DIRS = [shipped("static")]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
FILE_UPLOAD_HANDLERS = ["django.core.files.uploadhandler.TemporaryFileUploadHandler"]
DATA_UPLOAD_MAX_MEMORY_SIZE = PRIMER_MAX_BODY_BYTES
DATA_UPLOAD_MAX_NUMBER_FIELDS = (
    4000  # a template with all its 256 variables, 100 files and 50 commands posts 1250 and some
)

SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = bool(value("PRIMER_HTTPS"))
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "primer_site.console.csrf_failure"
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:", "blob:"],
        "worker-src": [SELF],
        "object-src": [NONE],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "form-action": [SELF],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.authentication.BearerAuthentication",
        "accounts.authentication.CookieAuthentication",
    ],
    # The login middleware guards pages only; without this DRF would answer 200 to nobody in particular.
    "DEFAULT_PERMISSION_CLASSES": ["accounts.permissions.RoleAndScope"],
    "DEFAULT_PARSER_CLASSES": ["primer_site.parsing.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "primer_site.problems.Negotiation",
    "DEFAULT_PAGINATION_CLASS": "primer_site.pagination.KeysetPagination",
    "DEFAULT_SCHEMA_CLASS": "primer_site.operation.Operation",
    "EXCEPTION_HANDLER": "primer_site.problems.handle",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "DEFAULT_THROTTLE_RATES": {
        "login": value("PRIMER_LOGIN_RATE"),
        "login_address": value("PRIMER_LOGIN_ADDRESS_RATE"),
    },
}
REST_KNOX = {
    "TOKEN_MODEL": "accounts.Token",
    "AUTH_HEADER_PREFIX": "Bearer",
    "AUTO_REFRESH": False,
}
KNOX_TOKEN_MODEL = "accounts.Token"  # noqa: S105 - a model's name
SPECTACULAR_SETTINGS = {
    "TITLE": "Primer",
    "DESCRIPTION": DESCRIPTION,
    "VERSION": "v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["accounts.permissions.RoleAndScope"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "primer_site.operation.add_shared",
    ],
    "ENUM_NAME_OVERRIDES": {
        "OutputEncodingEnum": ["utf-8", "base64"],
        "FileEncodingEnum": ["text", "base64"],
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "lines": {"()": "primer_site.logs.formatter", "style": value("PRIMER_LOG_FORMAT")},
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
    "root": {"handlers": ["stderr"], "level": value("PRIMER_LOG_LEVEL")},
    "loggers": {
        "daphne": {"level": "WARNING"},
        "django.request": {"level": "CRITICAL"},  # the request middleware logs each answer once, with its id
        "django.security.DisallowedHost": {"level": "CRITICAL"},  # anybody can send a wrong host: one line is enough
        "docker": {"level": "WARNING"},
        "httpx2": {"level": "WARNING"},  # a line for each question to a model
        "anthropic": {"level": "WARNING"},  # below it the SDKs log whole conversations
        "openai": {"level": "WARNING"},
        "urllib3": {"level": "WARNING"},
    },
}
