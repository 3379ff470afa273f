-- Health of a RayService: healthy when the app serves; a cluster being prepared beside it is no fault of the one that serves.
local status = obj.status
if obj.spec ~= nil and obj.spec.suspend then
  return { status = "Suspended", message = "spec.suspend is true" }
end
if status == nil then
  return { status = "Progressing", message = "waiting for the KubeRay operator" }
end
if obj.metadata.generation ~= nil and status.observedGeneration ~= nil and status.observedGeneration < obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen the last change yet" }
end
local ready, upgrading
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    ready = condition
  elseif condition.type == "UpgradeInProgress" then
    upgrading = condition
  end
end
local active = status.activeServiceStatus or {}
for name, application in pairs(active.applicationStatuses or active.applications or {}) do
  if application.status == "DEPLOY_FAILED" or application.status == "UNHEALTHY" then
    return { status = "Degraded", message = "application " .. name .. " is " .. application.status .. ": " .. (application.message or "") }
  end
end
if upgrading ~= nil and upgrading.status == "True" then
  return { status = "Progressing", message = "a new cluster is being prepared; the old one serves" }
end
if ready ~= nil and ready.status == "True" then
  return { status = "Healthy", message = ready.message or "the app serves" }
end
if ready ~= nil and ready.reason == "ValidationFailed" then
  return { status = "Degraded", message = ready.message or ready.reason }
end
return { status = "Progressing", message = (ready and ready.message) or "the app does not serve yet" }
