"""The door from a page to the API's own views, in this process: a rule about a kind exists there and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, QueryDict
from django.http.request import HttpHeaders
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.rest import ResourceViewSet
from primer_site.parsing import check_text

Body = dict[str, Any]


class PageRequest(Request):
    """A request to the API as the page's signed-in user; the page's own middleware has checked cookie and CSRF token."""

    def __init__(
        self,
        request: HttpRequest,
        method: str,
        *,
        data: Body | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(request, parsers=[], authenticators=[])
        self.user = request.user
        self.auth = None
        self.method = method
        self.headers = HttpHeaders(
            {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in (headers or {}).items()}
        )
        self._given = data if data is not None else {}
        self._asked = QueryDict(mutable=True)
        self._asked.update({name: value for name, value in (query or {}).items() if value != ""})
        # What else stands in the page's address is no question to the API.
        self.META = {**request.META, "QUERY_STRING": self._asked.urlencode()}

    @property
    def data(self) -> Any:
        return self._given

    @property
    def query_params(self) -> Any:
        return self._asked


class Door:
    """One view of the API for one page request. Everything it refuses comes out as the exception that it raises."""

    def __init__(self, view_class: type[Any], request: HttpRequest) -> None:
        self.view_class, self.request = view_class, request

    def view(self, method: str, action: str, /, **given: Any) -> Any:
        """The view with a request of ours in it, its permissions checked; `data`, `query` and `headers` as in a request."""
        data = given.pop("data", None)
        check_text(data)  # what the API's parser refuses of a body
        asked = PageRequest(
            self.request, method, data=data, query=given.pop("query", None), headers=given.pop("headers", None)
        )
        view = self.view_class()
        view.request, view.args, view.kwargs, view.action = asked, (), given, action
        view.headers, view.format_kwarg = {}, None
        view.check_permissions(asked)
        view.check_throttles(asked)
        return view

    def call(self, method: str, action: str, /, **given: Any) -> Response:
        """Runs an action of the view and returns its answer."""
        view = self.view(method, action, **given)
        return getattr(view, action)(view.request, **view.kwargs)  # type: ignore[no-any-return]

    def rows(self, query: Mapping[str, str] | None = None) -> Any:
        """The visible rows that the list's own filters leave."""
        view = self.view("GET", "list", query=query)
        return view.filter_queryset(view.get_queryset())

    def get(self, public_id: str) -> Any:
        """One visible row, an admin's look at somebody else's audited; raises `NotFound`."""
        return self.view("GET", "retrieve", id=public_id).get_object()

    def look(self, public_id: str) -> Any:
        """The same for a page that asks by itself: nobody opened anything, so nothing is audited."""
        return ResourceViewSet.get_object(self.view("GET", "retrieve", id=public_id))

    def shown(self, rows: Any, *, many: bool = False) -> Any:
        """Rows as this user may read them: secrets masked, an engine's address for admins only."""
        view = self.view("GET", "retrieve")
        serializer = view.serializer_class if view.serializer_class is not None else view.get_serializer_class()
        return serializer(rows, many=many, context=view.get_serializer_context()).data

    def create(self, body: Body, *, key: str = "") -> Body:
        headers = {"Idempotency-Key": key} if key else {}
        return dict(self.call("POST", "create", data=body, headers=headers).data)

    def replace(self, public_id: str, body: Body, *, rev: str) -> Body:
        """PUT under the revision that the form was made from; raises `PreconditionFailed` when another came between."""
        return dict(self.call("PUT", "update", id=public_id, data=body, headers={"If-Match": f'"{rev}"'}).data)

    def delete(self, public_id: str) -> bool:
        """Deletes, and returns whether work still goes on."""
        return self.call("DELETE", "destroy", id=public_id).status_code == 202
