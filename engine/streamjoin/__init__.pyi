from streamjoin import spark as spark
from streamjoin.api.failure import Failure as Failure
from streamjoin.api.join import Join as Join
from streamjoin.api.loop import Reason as Reason
from streamjoin.api.planning import Outline as Outline
from streamjoin.api.planning import PlanRefusal as PlanRefusal
from streamjoin.api.running import Epoch as Epoch
from streamjoin.api.running import Run as Run
from streamjoin.manifest.problem import ManifestError as ManifestError
from streamjoin.manifest.problem import Problem as Problem
from streamjoin.query.errors import QueryError as QueryError

__version__: str
