/* One output port of ns-3: packets that arrive at given times, a private drop-tail queue, a link.
 *
 * stdin: bits a second, bytes of the queue, then a line for each packet: its arrival in ps, its bytes on the wire.
 * stdout: a line for each packet, in the order of the events: its number, and the time in ps at which its last bit has
 * left, or -1 when it was dropped.
 */

#include <cstdio>
#include <cstdint>
#include <ns3/core-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>

using namespace ns3;

static const int PPP = 2; // bytes that the device adds

class NumberTag : public Tag
{
public:
  static TypeId GetTypeId () { static TypeId id = TypeId ("NumberTag").SetParent<Tag> ().AddConstructor<NumberTag> (); return id; }
  TypeId GetInstanceTypeId () const override { return GetTypeId (); }
  uint32_t GetSerializedSize () const override { return 4; }
  void Serialize (TagBuffer i) const override { i.WriteU32 (number); }
  void Deserialize (TagBuffer i) override { number = i.ReadU32 (); }
  void Print (std::ostream &os) const override { os << number; }
  uint32_t number = 0;
};

static uint32_t NumberOf (Ptr<const Packet> packet)
{
  NumberTag tag;
  packet->PeekPacketTag (tag);
  return tag.number;
}

static void Left (Ptr<const Packet> packet)
{
  printf ("%u %ld\n", NumberOf (packet), (long) Simulator::Now ().GetPicoSeconds ());
}

static void Dropped (Ptr<const Packet> packet)
{
  printf ("%u -1\n", NumberOf (packet));
}

static void Arrive (Ptr<PointToPointNetDevice> device, uint32_t number, uint32_t size)
{
  Ptr<Packet> packet = Create<Packet> (size - PPP);
  NumberTag tag;
  tag.number = number;
  packet->AddPacketTag (tag);
  device->Send (packet, device->GetBroadcast (), 0x0800);
}

int main ()
{
  Time::SetResolution (Time::PS);
  unsigned long rate, limit;
  if (scanf ("%lu %lu", &rate, &limit) != 2)
    return 2;
  NodeContainer nodes;
  nodes.Create (2);
  PointToPointHelper link;
  link.SetDeviceAttribute ("DataRate", DataRateValue (DataRate (rate)));
  link.SetDeviceAttribute ("Mtu", UintegerValue (60000));
  link.SetChannelAttribute ("Delay", TimeValue (MicroSeconds (1)));
  link.SetQueue ("ns3::DropTailQueue", "MaxSize", QueueSizeValue (QueueSize (QueueSizeUnit::BYTES, limit)));
  NetDeviceContainer devices = link.Install (nodes);
  Ptr<PointToPointNetDevice> device = DynamicCast<PointToPointNetDevice> (devices.Get (0));
  device->GetQueue ()->TraceConnectWithoutContext ("Drop", MakeCallback (&Dropped));
  device->TraceConnectWithoutContext ("PhyTxEnd", MakeCallback (&Left));
  unsigned long time;
  unsigned size;
  for (uint32_t number = 0; scanf ("%lu %u", &time, &size) == 2; number++)
    Simulator::Schedule (PicoSeconds (time), &Arrive, device, number, size);
  Simulator::Run ();
  Simulator::Destroy ();
  return 0;
}
