from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0003_token_signed_in'),
    ]

    operations = [
        migrations.AddField(
            model_name='user',
            name='shortcuts',
            field=models.BooleanField(default=True),
        ),
    ]
