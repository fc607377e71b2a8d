"""The row that ties a database to the install it belongs to."""

from __future__ import annotations

from django.db import models


class Install(models.Model):
    """One row: whose database this is. Engine objects carry the same id, so another id would see them as strangers."""

    instance_id = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(pk=1), name="primer_site_install_single_row")]

    def __str__(self) -> str:
        return self.instance_id
