"""The controller of WorkerGroupScale: carries its count out on a RayCluster in whole gangs, idle ones first to go."""
