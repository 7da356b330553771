"""Settings of one section of a config, by their full names."""


def section(name, **settings):
    return {f"{name}.{key}": value for key, value in settings.items()}
