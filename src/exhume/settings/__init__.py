"""The settings of an audit: one schema for files, the command line, `exhume init` and the docs."""

from exhume.settings.brief import Brief as Brief
from exhume.settings.releases import CheckpointSettings as CheckpointSettings
from exhume.settings.releases import FittedSettings as FittedSettings
from exhume.settings.releases import ReleaseSettings as ReleaseSettings
from exhume.settings.releases import SplitSettings as SplitSettings
from exhume.settings.releases import UpdateSettings as UpdateSettings
from exhume.settings.releases import VersionsSettings as VersionsSettings
from exhume.settings.schema import SettingsSection as SettingsSection
from exhume.settings.schema import SharedNumber as SharedNumber
from exhume.settings.schema import SharedText as SharedText
from exhume.settings.schema import setting as setting
from exhume.settings.sections import AttackSettings as AttackSettings
from exhume.settings.sections import BudgetSettings as BudgetSettings
from exhume.settings.sections import DataSettings as DataSettings
from exhume.settings.sections import MachineSettings as MachineSettings
from exhume.settings.sections import Settings as Settings
from exhume.settings.sections import VictimSettings as VictimSettings
