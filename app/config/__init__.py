"""Every setting: `settings.py` types them, `load.py` reads file, environment and flags, `detect.py` finds a model
when nothing is configured, `convert.py` turns agenticSeek's `config.ini` into ours."""
