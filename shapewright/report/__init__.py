"""A job as one HTML file that needs neither the service nor a network: ``read`` it from somewhere, ``render`` it."""

from shapewright.report.page import render
from shapewright.report.sources import ReportedJob, ReportedTask, from_directory, from_service

__all__ = ["ReportedJob", "ReportedTask", "from_directory", "from_service", "render"]
