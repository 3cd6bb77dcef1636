from .bodies import *
from .bodies import _hidden as shown
