"""SenseNova-U1/U1.5 (NEO-unify): one backbone that understands and draws, in pixel space."""
