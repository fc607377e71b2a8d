from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0002_audit_tokens_and_addresses'),
    ]

    operations = [
        migrations.AddField(
            model_name='token',
            name='signed_in',
            field=models.BooleanField(default=False),
        ),
    ]
