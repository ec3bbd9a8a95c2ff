"""The six one-way join algorithms as pairs of state machines, one for each of the two sites. Pure: events in, effects out.

==================  ====================================================================================================
``window``          tuples, windows, and what a site holds of one
``messages``        events, messages with their bytes, effects
``site``            what all machines share: their settings, the three delays, the check for late messages
``simple``          SP-S, SP-D (Algs. 1, 2)
``at_source``       SM-S1, SM-S2 (Algs. 3, 4, 7, 8)
``at_destination``  SM-D1, SM-D2 (Algs. 5, 6)
``distinct``        a window's distinct keys at both sites (Alg. 9)
==================  ====================================================================================================
"""

from __future__ import annotations

from streamjoin_research.semijoin.algorithms.at_destination import DestinationOfSMD1, DestinationOfSMD2, SourceOfSMD1, SourceOfSMD2
from streamjoin_research.semijoin.algorithms.at_source import DestinationOfSMS1, DestinationOfSMS2, SourceOfSMS1, SourceOfSMS2
from streamjoin_research.semijoin.algorithms.simple import DestinationOfSPS, JoiningDestination, SourceOfSPD, SourceOfSPS
from streamjoin_research.semijoin.algorithms.site import Setting, Site
from streamjoin_research.semijoin.names import Algorithm

_MACHINES: dict[Algorithm, tuple[type[Site], type[Site]]] = {
    Algorithm.SP_S: (SourceOfSPS, DestinationOfSPS),
    Algorithm.SP_D: (SourceOfSPD, JoiningDestination),
    Algorithm.SM_S1: (SourceOfSMS1, DestinationOfSMS1),
    Algorithm.SM_S2: (SourceOfSMS2, DestinationOfSMS2),
    Algorithm.SM_D1: (SourceOfSMD1, DestinationOfSMD1),
    Algorithm.SM_D2: (SourceOfSMD2, DestinationOfSMD2),
}


def one_way(algorithm: Algorithm, setting: Setting) -> tuple[Site, Site]:
    """The machines of the two sites, at the beginning of both streams."""
    source, destination = _MACHINES[algorithm]
    return source(setting), destination(setting)
