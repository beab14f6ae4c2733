"""One room a method; `cameraready list` names them.

Folders named by the environment variable ``CAMERAREADY_METHODS`` (separated like PATH) are further places to look for
methods, so that a method under development, or a private one, need not live in this package.
"""

import os

__path__ += [folder for folder in os.environ.get("CAMERAREADY_METHODS", "").split(os.pathsep) if folder]
