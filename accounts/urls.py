"""Routes below /v1/."""

from django.urls import path

from accounts.api import AuditViewSet, LoginView, LogoutView, MeView, PasswordView, TokenViewSet, UserViewSet

urlpatterns = [
    path("auth/login", LoginView.as_view()),
    path("auth/logout", LogoutView.as_view()),
    path("auth/password", PasswordView.as_view()),
    path("me", MeView.as_view()),
    path("tokens", TokenViewSet.as_view({"get": "list", "post": "create"})),
    path("tokens/<uuid:id>", TokenViewSet.as_view({"delete": "destroy"})),
    path("audit", AuditViewSet.as_view({"get": "list"})),
    path("users", UserViewSet.as_view({"get": "list", "post": "create"})),
    path("users/<str:id>", UserViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"})),
]
