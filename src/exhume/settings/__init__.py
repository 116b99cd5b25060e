"""The settings of an audit: one schema for files, the command line, `exhume init` and the docs."""

from exhume.settings.brief import RELEASES, Brief, ReleaseSettings
from exhume.settings.releases import (
    DEFENCES,
    CheckpointSettings,
    FittedSettings,
    SplitSettings,
    UpdateSettings,
)
from exhume.settings.schema import (
    Setting,
    SettingsSection,
    filled,
    made_of,
    setting,
    settings_of,
    toml_at,
    toml_of,
    toml_value,
    types_of,
)
from exhume.settings.sections import (
    AttackSettings,
    BudgetSettings,
    DataSettings,
    MachineSettings,
    Settings,
    VictimSettings,
)

__all__ = [
    "DEFENCES",
    "RELEASES",
    "AttackSettings",
    "Brief",
    "BudgetSettings",
    "CheckpointSettings",
    "DataSettings",
    "FittedSettings",
    "MachineSettings",
    "ReleaseSettings",
    "Setting",
    "Settings",
    "SettingsSection",
    "SplitSettings",
    "UpdateSettings",
    "VictimSettings",
    "filled",
    "made_of",
    "setting",
    "settings_of",
    "toml_at",
    "toml_of",
    "toml_value",
    "types_of",
]
