"""Replays a request trace against an autoscaling policy. Knows no cluster and no clock but its own."""
