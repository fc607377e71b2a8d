from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0004_user_shortcuts'),
    ]

    operations = [
        migrations.AddField(
            model_name='token',
            name='made_by',
            field=models.ForeignKey(blank=True, editable=False, null=True, on_delete=models.deletion.CASCADE, related_name='made', to='accounts.token', to_field='uuid'),
        ),
    ]
