local health = {status = "Progressing", message = "Waiting for the StreamJoin operator"}

local function condition(kind)
  for _, found in ipairs(obj.status.conditions) do
    if found.type == kind then
      return found
    end
  end
  return {}
end

if obj.metadata.deletionTimestamp ~= nil then
  health.message = "The StreamJoin is being deleted"
  return health
end

if obj.status == nil or obj.status.conditions == nil then
  return health
end

local ready, stalled, reconciling = condition("Ready"), condition("Stalled"), condition("Reconciling")

if ready.observedGeneration ~= obj.metadata.generation then
  return health
end

-- The spec is refused, or failed its trial: the join, if there is one, runs as of an earlier generation.
if stalled.status == "True" then
  health.status = "Degraded"
  health.message = stalled.message
  return health
end

if obj.spec.paused == true then
  health.status = "Suspended"
  health.message = ready.message
  return health
end

-- A driver that crashes, or an epoch that stands still: it is tried again, and somebody should look.
if obj.status.phase == "Failed" or condition("EpochStalled").status == "True" then
  health.status = "Degraded"
  health.message = ready.message
  return health
end

if ready.status == "True" and reconciling.status ~= "True" then
  health.status = obj.spec.suspend == true and "Suspended" or "Healthy"
  health.message = ready.message
  return health
end

health.message = ready.status == "True" and reconciling.message or ready.message
return health
