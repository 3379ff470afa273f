package v1beta1

// QueueAllocationGateKey is the one name that Volcano v1.15.1 uses and this module lacks at the newest version that is
// published for it.
const QueueAllocationGateKey = GroupName + "/queue-allocation-gate"
