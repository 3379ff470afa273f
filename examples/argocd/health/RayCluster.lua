-- Health of a RayCluster: healthy when all its pods run once, degraded when KubeRay refuses or fails to make them.
local health = { status = "Progressing", message = "waiting for the KubeRay operator" }
local status = obj.status
if obj.spec ~= nil and obj.spec.suspend then
  return { status = "Suspended", message = "spec.suspend is true" }
end
if status == nil then
  return health
end
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "ReplicaFailure" and condition.status == "True" then
    return { status = "Degraded", message = condition.reason .. ": " .. (condition.message or "") }
  end
end
if status.reason ~= nil and status.reason ~= "" and status.state ~= "ready" then
  return { status = "Degraded", message = status.reason }
end
if obj.metadata.generation ~= nil and status.observedGeneration ~= nil and status.observedGeneration < obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen the last change yet" }
end
if status.state == "ready" then
  return { status = "Healthy", message = (status.readyWorkerReplicas or 0) .. " workers ready" }
end
local ready = status.readyWorkerReplicas or 0
local desired = status.desiredWorkerReplicas or 0
health.message = ready .. " of " .. desired .. " workers ready"
return health
